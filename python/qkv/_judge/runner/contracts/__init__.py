"""What is judged, in words: the tasks and what they take (tasks.txt), and what names mean (words.txt)."""
