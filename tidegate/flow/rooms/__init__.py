"""Bounds of waiting rooms that several gateway workers share."""
