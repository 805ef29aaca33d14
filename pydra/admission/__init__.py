"""Admission: the backends' config types, checked before a claim is stored."""
