"""Pictures of stretto-plan."""
import unittest
import xml.etree.ElementTree

from plan_harness import LINKS, Drawn


class Pictures(Drawn):
    def boxes(self, root):
        """(left, top, right, bottom) and the text of everything written, at 0.6 em a character."""
        found = []
        for element in root.iter("{http://www.w3.org/2000/svg}text"):
            size = float(element.get("font-size", root.get("font-size")))
            width = 0.6 * size * len(element.text)
            left = float(element.get("x")) - {"start": 0, "middle": width / 2, "end": width}[element.get("text-anchor", "start")]
            bottom = float(element.get("y"))
            found.append(((left, bottom - size, left + width, bottom + 0.3 * size), element.text))
        return found

    def misplaced(self, root):
        """The texts that lie outside of the picture, or on another one of the legend."""
        x, y, width, height = map(float, root.get("viewBox").split())
        boxes = self.boxes(root)
        wrong = [text for (left, top, right, bottom), text in boxes
                 if left < x or top < y or right > x + width or bottom > y + height]
        first_rank = next(box for box, text in boxes if text == "rank 0")
        legend = [each for each in boxes if each[0][3] < first_rank[1]]
        for i, (one, text) in enumerate(legend):
            for other, _ in legend[:i]:
                if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]:
                    wrong.append(text)
        return wrong

    def test_every_text_lies_inside(self):
        two_levels = lambda ranks: ["--ranks-per-node", 2 if ranks % 2 == 0 else 1]
        pictures = {
            "few words": lambda ranks: ["all_reduce", "--algo", "ring"],
            "two lanes": lambda ranks: ["reduce", "--algo", "double_binary_tree/3", "--root", ranks - 1],
            "shared memory": lambda ranks: ["all_reduce", "--algo", "staged"],
            "most words": lambda ranks: ["all_reduce", "--quantize", "int4", "--quantize-result", "int8",
                                         "--algo", "two_level", *two_levels(ranks)],
        }
        for name, words in pictures.items():
            for ranks in [1, 2, 3, 4, 8, 31, 64]:
                for links in [[], ["--simulate", LINKS]]:
                    if links and name == "shared memory" and ranks > 8:
                        continue  # more than a node of these links
                    with self.subTest(name, ranks=ranks, links=links):
                        self.lines(*words(ranks), "--ranks", ranks, "--bytes", "64K", "--svg", self.file, *links)
                        root = xml.etree.ElementTree.parse(self.file).getroot()
                        self.assertEqual(self.misplaced(root), [])
        # The check itself notices a legend that is cut off, and entries on top of each other.
        width = root.get("viewBox").split()[2]
        root.set("viewBox", root.get("viewBox").replace(width, str(float(width) / 2)))
        self.assertNotEqual(self.misplaced(root), [])
        for element in root.iter("{http://www.w3.org/2000/svg}text"):
            element.set("x", "80")
        self.assertIn("recv", self.misplaced(root))

    def test_over_rounds(self):
        self.assertEqual(self.lines("all_reduce", "--algo", "ring", "--ranks", 8, "--svg", self.file), [])
        texts = self.texts()
        for text in ["all_reduce by ring, 8 ranks, 1 KiB", "rank 7", "round", "13", "send", "recv", "recv_reduce"]:
            self.assertIn(text, texts)
        self.assertNotIn("copy", texts)

    def test_over_time(self):
        self.lines("reduce", "--algo", "binomial", "--ranks", 4, "--svg", self.file, "--simulate", LINKS)
        self.assertIn("us", self.texts())
        self.assertIn("recv_reduce", self.texts())

    def test_shared_memory(self):
        for links in [[], ["--simulate", LINKS]]:
            self.lines("all_reduce", "--algo", "staged", "--ranks", 4, "--svg", self.file, *links)
            for text in ["signal", "wait", "read", "read_reduce", "copy"]:
                self.assertIn(text, self.texts())

    def test_refusals(self):
        self.refused("draws one algorithm", "all_reduce", "--ranks", 4, "--svg", self.file)
        self.refused("up to 64 ranks", "all_reduce", "--algo", "ring", "--ranks", 65, "--svg", self.file)
        self.refused("cannot be written", "all_reduce", "--algo", "ring", "--ranks", 4, "--svg", "/none/picture.svg")
        self.assertFalse(self.file.exists())


if __name__ == "__main__":
    unittest.main()
