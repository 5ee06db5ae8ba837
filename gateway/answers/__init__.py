"""Responses that the gateway makes itself: errors, health, model lists, cold starts."""
