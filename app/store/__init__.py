"""What outlives the program: conversations, the journal of requests, sessions over them."""
