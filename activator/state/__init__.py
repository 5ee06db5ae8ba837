"""The state of the waiting room, one object graph: only room.py changes it."""
