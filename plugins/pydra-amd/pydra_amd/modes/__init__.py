"""Carries out changes of compute and memory modes."""
