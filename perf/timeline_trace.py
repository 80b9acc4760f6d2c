"""A trace that stretto-train --trace or stretto-perf overlap --trace has written, and how much of communication lay beside
computation in it. Intervals are lists of (begin, end), in microseconds."""
import bisect
import collections
import json

COMPUTE, COMMUNICATION, STEP = "compute", "communication", "step"
COMPUTING_THREAD = 0

Slice = collections.namedtuple("Slice", "begin end name category arguments")
Track = collections.namedtuple("Track", "id name slices")
Arrow = collections.namedtuple("Arrow", "start end")  # each (rank, track, time)
Sums = collections.namedtuple("Sums", "time compute communication hidden exposed")


def union(intervals):
    """The same moments in intervals that do not touch."""
    result = []
    for begin, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def intersection(one, other):
    """Of two unions."""
    result, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        begin, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if begin < end:
            result.append((begin, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return result


def difference(one, other):
    """The moments of one union that are not in the other."""
    result, first = [], 0
    for begin, end in one:
        while first < len(other) and other[first][1] <= begin:
            first += 1
        place = first
        while place < len(other) and other[place][0] < end:
            if begin < other[place][0]:
                result.append((begin, other[place][0]))
            begin = other[place][1]
            place += 1
        if begin < end:
            result.append((begin, end))
    return result


def within(intervals, begin, end):
    """What of a union lies between the two."""
    first = bisect.bisect_right(intervals, begin, key=lambda interval: interval[1])
    last = bisect.bisect_left(intervals, end, key=lambda interval: interval[0])
    return [(max(begin, a), min(end, b)) for a, b in intervals[first:last]]


def length(intervals):
    return sum(end - begin for begin, end in intervals)


class Rank:
    """What one rank did."""

    def __init__(self, name, tracks):
        self.name = name
        self.tracks = tracks
        of = lambda category: [s for track in tracks for s in track.slices if s.category == category]
        spans = lambda slices: [(s.begin, s.end) for s in slices]
        self.steps = sorted(of(STEP))
        self.compute = union(spans(of(COMPUTE)))
        self.communication = union(spans(of(COMMUNICATION)))
        self.hidden = intersection(self.communication, self.compute)
        self.exposed = difference(self.communication, self.compute)

    def sums(self, begin, end):
        return Sums(end - begin, *(length(within(each, begin, end))
                                   for each in (self.compute, self.communication, self.hidden, self.exposed)))


class Trace:
    def __init__(self, ranks, arrows, about):
        self.ranks, self.arrows, self.about = ranks, arrows, about  # ranks: by number
        ends = [(s.begin, s.end) for rank in ranks.values() for track in rank.tracks for s in track.slices]
        self.begin = min((begin for begin, _ in ends), default=0)
        self.end = max((end for _, end in ends), default=0)

    def steps(self):
        """Names in order, each with its time from the first rank's beginning to the last one's end."""
        times = {}
        for rank in self.ranks.values():
            for step in rank.steps:
                begin, end = times.get(step.name, (step.begin, step.end))
                times[step.name] = (min(begin, step.begin), max(end, step.end))
        return sorted(times.items(), key=lambda item: item[1])

    def only(self, begin, end):
        """What of it touches these times."""
        ranks = {number: Rank(rank.name, [Track(track.id, track.name, [s for s in track.slices if s.end > begin and s.begin < end])
                                          for track in rank.tracks]) for number, rank in self.ranks.items()}
        arrows = [arrow for arrow in self.arrows if arrow.end[2] > begin and arrow.start[2] < end]
        return Trace(ranks, arrows, self.about)


def read(text):
    """Throws ValueError or KeyError for what is none."""
    trace = json.loads(text)
    names, track_names, track_order = {}, {}, {}
    slices = collections.defaultdict(list)
    starts, arrows = {}, []
    for event in trace["traceEvents"]:
        place = (event["pid"], event.get("tid"))
        if event["ph"] == "X":
            begin, lasts = event["ts"], event["dur"]
            slices[place].append(Slice(begin, begin + lasts, event["name"], event["cat"], event.get("args", {})))
        elif event["ph"] == "s":
            starts[event["id"]] = (*place, event["ts"])
        elif event["ph"] == "f":
            arrows.append(Arrow(starts[event["id"]], (*place, event["ts"])))
        elif event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            track_names[place] = event["args"]["name"]
        elif event["name"] == "thread_sort_index":
            track_order[place] = event["args"]["sort_index"]
    tracks = collections.defaultdict(list)
    for place in sorted(slices, key=lambda place: (place[0], track_order.get(place, place[1]))):
        tracks[place[0]].append(Track(place[1], track_names.get(place, str(place[1])), sorted(slices[place], key=lambda s: (s.begin, -s.end))))
    return Trace({rank: Rank(names.get(rank, f"rank {rank}"), tracks[rank]) for rank in sorted(set(names) | set(tracks))}, arrows,
                 trace.get("otherData", {}))
