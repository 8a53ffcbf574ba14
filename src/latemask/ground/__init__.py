"""What every room stands on. Knows no room: nothing here imports from elsewhere in the package."""
