"""The transaction coordinator: transactional ids, their transactions, and how these end (KIP-98, KIP-890)."""
