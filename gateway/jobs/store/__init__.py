"""Where jobs are kept: a file that all gateway workers of a machine share."""
