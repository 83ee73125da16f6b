"""Twenty prompts of different kinds: prose, code, Chinese, lists, and texts that quote themselves."""

PROMPTS = (
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Explain how photosynthesis works to a ten-year-old.",
    "What are the advantages and drawbacks of remote work?",
    "Describe the water cycle in five sentences.",
    "Give three tips for learning a new language and say why each of them helps.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "def quicksort(values):\n    if len(values) < 2:\n        return values\n    pivot = values[0]\n",
    "Write an SQL query that lists the ten customers with the highest total order value.",
    "Translate this loop into a list comprehension:\n"
    "result = []\nfor x in range(10):\n    if x % 2 == 0:\n        result.append(x * x)",
    "请用中文简单介绍一下长城的历史。",
    "把下面的句子翻译成英文：今天天气很好，我们一起去公园散步吧。",
    "List the planets of the solar system, one per line, with one fact about each.",
    "Make a numbered list of twelve fruits.",
    "Write a shopping list for a dinner with four guests, grouped by shop.",
    "Repeat the following text exactly: The quick brown fox jumps over the lazy dog. "
    "The quick brown fox jumps over the lazy dog.",
    "Copy this list and add one item: alpha, beta, gamma, delta, alpha, beta, gamma, delta, alpha, beta, gamma",
    "Summarise: The committee met on Monday. The committee met again on Tuesday. The committee will meet on Wednesday, "
    "because the committee could not agree on Monday or on Tuesday.",
    "Question: What is 12 + 30? Answer: 42. Question: What is 15 + 20? Answer: 35. Question: What is 11 + 11? Answer:",
    "A poem with a refrain: Row, row, row your boat, gently down the stream. Row, row, row your boat,",
    'Fix the JSON: {"name": "Ada", "born": 1815, "name": "Grace", "born": 1906, "name": "Edsger", "born": 1930',
)
