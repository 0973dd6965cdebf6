"""The commands worker, launch and status of python -m anabranch."""
