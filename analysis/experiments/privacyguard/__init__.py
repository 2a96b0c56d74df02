"""Experiments of PrivacyGuard."""
