"""The waiting room: requests wait for a slot, a replica or a refusal."""
