"""What a layer keeps for its backward pass: what products, attention, norms and activations read."""

from meshwright.planner.importers.module_frame import Frame
from meshwright.planner.importers.module_nodes import Node


class Saving(Frame):
    """The rules of what is kept; the layer's input and output are the memory model's."""

    def _bends(self, root: int) -> bool:
        """Return whether something that needs its input, and keeps it not itself, reads a value."""
        readers = self.links.readers.get(root, [])
        return any(r.kind != "pointwise" or not (r.linear or r.norm) for r in readers)

    def _carries(self, node: Node) -> bool:
        """Return whether a linear node only carries data into attention, which keeps the data itself."""
        reach = self.links.reach(node)
        return (
            node.linear
            and bool(reach)
            and all(r.sink is not None and r.sink.kind == "attention" for r in reach)
        )

    def needed(self, root: int) -> bool:
        """Return whether the backward pass needs a value."""
        for reader in self.links.readers.get(root, []):
            if reader.kind != "pointwise" or not reader.linear or self._carries(reader):
                return True
        return False

    def _feeds(self, written: list[int]) -> bool:
        """Return whether products with weights alone read what a group writes."""
        readers = [r for w in written for r in self.links.readers.get(w, [])]
        plain = all(r.kind == "product" for r in readers) and self.stretch.output not in written
        plain = plain and self.stretch.role == "block"
        return bool(readers) and plain

    def _saves(self, group: list[Node], written: list[int]) -> tuple[float, bool]:
        """Return the features per token that a group keeps, and whether recomputing it frees them."""
        if all(self._carries(n) for n in group):
            return sum(self._widened(n) for n in group), False
        given = self.is_source and not self.stretch.path
        kept: float = sum(
            self.width(w)
            for w in written
            if (self.needed(w) and w != self.stretch.output) or (given and w == self.stretch.output)
        )
        if all(n.linear for n in group):
            return kept, False
        if any(n.norm for n in group) and any(self._unsaved(r) for n in group for r in n.reads):
            return kept + sum(self.width_read(n) for n in group if n.norm), False
        return kept, True

    def _widened(self, node: Node) -> int | float:
        """Return what data on its way into attention keeps: nothing, unless it grew (MLA's keys)."""
        written = sum(self.width(w) for w in node.writes)
        return written if written > self.width_read(node) else 0

    def _unsaved(self, root: int) -> bool:
        """Return whether nobody keeps a value that a norm needs: a partial sum, or looked-up rows."""
        maker = self.links.maker.get(root)
        if maker is None:
            return False
        return maker.kind == "lookup" or self.shards.get(maker.at) == "row"
