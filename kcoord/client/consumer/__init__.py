"""The consumer: alone, in a classic group, and in a consumer group of KIP-848."""
