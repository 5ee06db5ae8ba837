"""Readers of request and response bodies: Open Inference Protocol, OpenAI, forms, event streams."""
