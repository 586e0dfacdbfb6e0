"""Algebra that a healthy device obeys, checked on the device alone. One file a family of operators, one row each.

An identity needs no reference and no host arithmetic beyond comparing. It says nothing about faults that obey it too:
each row names the kinds that it is blind to. Bit-exact ones hold only on a device that computes the same twice.
"""

from . import activations, copies, norms, products, softmax, sums
from .identity import IDENTITIES, Identity, Probe, check_identities, register

__all__ = ["IDENTITIES", "Identity", "Probe", "check_identities", "register"]

_FILES = (activations, copies, norms, products, softmax, sums)  # registered by being imported
