"""Prepare and unprepare: what a claim will hold and do, who may not have it at once, and the steps carried out."""
