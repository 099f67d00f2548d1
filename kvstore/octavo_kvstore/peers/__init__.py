"""Other hosts' kvstores: who they are, what is asked of them, and the streams between."""
