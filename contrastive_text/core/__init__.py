"""What every package stands on: errors, files written whole, and manifests of what was written."""
