"""What the commands share that talk to a cluster: where it is, how long they wait, how they fail."""
