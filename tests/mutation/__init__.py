"""Mutation testing of the pure cores: does a test fail when an operator, a limit or a branch is changed?"""
