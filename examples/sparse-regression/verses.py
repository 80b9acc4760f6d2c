"""Makes a data set in LIBSVM's format of Bible verses: whether one is of the New Testament, told by the words that it has.

bible -f gen1:1-rev22:21 | python3 verses.py >verses.svm     # of Debian's package bible-kjv
"""
import re
import sys

keys = {}  # of words, from 1 on in the order of their first verses; 0 is in each verse, its weight the intercept
label = 0
for line in sys.stdin:
    place, _, verse = line.partition(" ")
    if not verse.strip():
        continue
    if place == "Mat1:1":
        label = 1
    found = {keys.setdefault(word, len(keys) + 1) for word in re.findall("[a-z']+", verse.lower())}
    print(label, "0:1", *(f"{key}:1" for key in sorted(found)))
if label == 0:
    sys.exit("verses.py: no line begins with 'Mat1:1 ', so that all labels are 0; give the verses of both Testaments.")
