"""Built-in placement policies, one file each."""
