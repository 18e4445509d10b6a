"""From messages to a prompt, and from token pieces to text."""
