"""Passing a GPU through to a virtual machine: kernel drivers bound and given back."""
