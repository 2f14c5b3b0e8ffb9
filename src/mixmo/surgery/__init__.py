"""From any classifier to M members and back: wrap, convert, fold."""
