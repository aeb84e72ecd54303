from contrastive_text import TokenView


class SwapNeighbors(TokenView):
    def __init__(self, rate: float = 0.1) -> None:
        self.rate = rate

    def __call__(self, tokens, rng):
        order = list(range(len(tokens)))
        for i in range(len(order) - 1):
            if rng.random() < self.rate:
                order[i], order[i + 1] = order[i + 1], order[i]
        return tokens.take(order)
