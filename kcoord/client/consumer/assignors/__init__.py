"""The assignors of the classic protocol, which the leader of a group runs."""
