"""Predicted beside measured."""
