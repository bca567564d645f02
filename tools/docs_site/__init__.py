"""The documentation as web pages: Markdown in, plain HTML out, broken links and anchors refused."""
