// Simulates events in the order of time. Times are whole femtoseconds, so that simultaneous events are exactly simultaneous.
// Ranks are simulated by class: rank r belongs to class r modulo the period; in the general case the period is the number of
// ranks. A message is identified by its sender's class, the way from sender to receiver, and its lane; these match whichever
// rank stands for a class.
#include "stretto/planning/simulate.hpp"

#include <algorithm>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "collectives/simulation/simulate_links.hpp"
#include "collectives/simulation/simulate_program.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

// The number of ranks in a unit of the level just inside the one that all of these ranks need.
int unit_of(int size, const LinkModel& links) {
  int unit = 1;
  for (const LinkLevel& level : links.levels) {
    if (level.ranks == 0 || level.ranks >= size) break;
    unit = level.ranks;
  }
  return unit;
}

// Whether one unit can stand for all: the second, third, middle and last unit must have the plans of the first.
bool units_are_alike(int unit, const Compiler& compiler, const Ways& ways) {
  if (ways.size % unit != 0) return false;
  const int units = ways.size / unit;
  for (int rank = 0; units > 1 && rank < unit; ++rank) {
    const LanePrograms first = compiler.of_rank(rank, ways);
    for (const int other : {1, std::min(2, units - 1), units / 2, units - 1}) {
      if (compiler.of_rank(other * unit + rank, ways) != first) return false;
    }
  }
  return true;
}

class Machine {
 public:
  Machine(const Ways& ways, int period, int unit, const LinkModel& links, const Compiler& compiler, bool timeline)
      : size_(ways.size),
        ways_(ways),
        period_(period),
        unit_(unit),
        wants_timeline_(timeline),
        levels_(links, ways.size, period),
        signals_(period),
        waiting_(period),
        out_(period * (links.levels.size() + 1)),
        in_(period * (links.levels.size() + 1)),
        busy_(period),
        finish_(period) {
    std::int64_t steps = 0;
    for (int rank = 0; rank < period; ++rank) {
      int lane = 0;
      for (LaneProgram& program : compiler.of_rank(rank, ways)) {
        steps += static_cast<std::int64_t>(program.actions.size());
        lanes_.push_back({rank, lane++, std::move(program)});
      }
      require(steps <= most_steps_simulated,
              "{} ranks have more than {} steps, and their plans are not alike, so that all of them would have to be "
              "simulated; choose fewer ranks, or bytes that divide evenly.",
              size_, most_steps_simulated);
    }
  }

  Simulation run() {
    for (LaneState& lane : lanes_) begin_round(lane, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      require(event.time < time_of(longest_seconds / 2), "The collective takes longer than the simulator's clock, {} s.",
              longest_seconds / 2);
      switch (event.kind) {
        case EventKind::round: begin_round(lanes_[event.lane], event.time); break;
        case EventKind::arrival: reduce_arrived(event); break;
        case EventKind::signal: pass(event); break;
        case EventKind::message: start(event); break;
      }
    }
    Simulation result;
    for (const LaneState& lane : lanes_) {
      ensure(lane.round == lane.program.round_ends.size(), "Rank {} waits forever in round {}; verify() says why.",
             lane.rank, lane.round);
    }
    result.finish.reserve(size_);
    for (int rank = 0; rank < size_; ++rank) {
      result.finish.push_back(static_cast<double>(finish_[rank % period_]) / a_second);
    }
    result.seconds = *std::max_element(result.finish.begin(), result.finish.end());
    for (const Level& level : levels_.all()) result.bytes_sent.push_back(level.bytes * (size_ / period_));
    result.ranks_simulated = period_;
    result.timeline = std::move(timeline_);
    return result;
  }

 private:
  struct LaneState {
    int rank;
    int lane;
    LaneProgram program;
    std::size_t round = 0;
    int open = 0;        // steps of the round that have not ended
    Time round_end = 0;  // the latest end among those that have
  };
  // At the same time, rounds, arrivals and signals come before messages, so that all ready messages are known when the first
  // gets its ports. Among messages the order of steps decides, then their ways, then the place in the unit. Messages that
  // are equal in all of these share no port.
  enum class EventKind : std::uint8_t { round, arrival, signal, message };
  struct Event {
    Time time;
    EventKind kind;
    std::uint32_t step;  // of a message: its number in the sender's round
    std::int32_t way;    // of a message, or of one that arrives
    std::int32_t place;  // of the rank in its unit
    std::size_t lane;    // in lanes_: the lane of a round or a wait, the sender's of a message, the receiver's of an arrival
    std::size_t to_lane;  // the receiver's lane, for a message
    std::int64_t bytes;
    bool reduces;
    Time begun;  // begin of an arrival's message, or of a wait
    auto order() const { return std::tie(time, kind, step, way, place, lane); }
    bool operator<(const Event& other) const { return other.order() < order(); }  // the earliest on top
  };
  struct Waiting {  // for a signal
    std::size_t lane;
    std::int32_t way;
    std::size_t signals;  // that it takes
    Time since;
  };
  struct Posted {
    Time time;
    std::uint32_t step;
    std::size_t lane;
    const LaneAction* action;
  };

  void begin_round(LaneState& lane, Time now) {
    if (lane.round == lane.program.round_ends.size()) {
      finish_[lane.rank] = std::max(finish_[lane.rank], now);
      return;
    }
    const std::uint32_t begin = lane.round == 0 ? 0 : lane.program.round_ends[lane.round - 1];
    const std::uint32_t end = lane.program.round_ends[lane.round];
    lane.open = 1;
    lane.round_end = now;
    for (std::uint32_t i = begin; i < end; ++i) {
      const LaneAction& action = lane.program.actions[i];
      if (waits(action.kind)) {
        ++lane.open;
      } else if (quantizes(action.kind)) {
        ++lane.open;  // in parallel with the messages
      } else if (action.kind == StepKind::signal) {
        now = signal(lane, now);
      } else if (action.bytes > 0) {
        const Time done = occupy(lane, seconds_of(lane, action), now);
        record(lane, action.kind, peer_of(lane, action), action.bytes, now, done);
        now = done;
      }
    }
    Time worked = 0;
    for (std::uint32_t i = begin; i < end; ++i) {
      const LaneAction& action = lane.program.actions[i];
      if (quantizes(action.kind)) {
        const Time done = occupy(lane, seconds_of(lane, action), now);
        record(lane, action.kind, -1, action.bytes, std::max(now, worked), done);
        worked = done;
        close_one(lane, done);
      } else if (action.kind == StepKind::wait) {
        wait(lane, action, now);
      } else if (waits(action.kind)) {
        post(lane, action, i - begin, now);
      }
    }
    close_one(lane, now);
  }

  static bool waits(StepKind kind) {
    return kind == StepKind::send || kind == StepKind::recv || kind == StepKind::recv_reduce || kind == StepKind::wait;
  }
  int peer_of(const LaneState& lane, const LaneAction& action) const {
    if (action.kind == StepKind::read) return ways_.sender(lane.rank, action.way);
    if (action.kind != StepKind::read_reduce && action.kind != StepKind::copy_to_all) return -1;
    return action.way < 0 ? everybody : ways_.receiver(lane.rank, action.way);
  }

  // Makes the rank busy for `seconds` as soon as it is free. Returns the end.
  Time occupy(const LaneState& lane, double seconds, Time now) {
    Time& busy = busy_[lane.rank];
    busy = std::max(now, busy) + time_of(seconds);
    return busy;
  }
  Time work(const LaneState& lane, std::int64_t bytes, Time now) {
    return occupy(lane, levels_.seconds_of_work(bytes), now);
  }
  // For a step that does not wait for other ranks.
  double seconds_of(const LaneState& lane, const LaneAction& action) {
    const int peer = peer_of(lane, action);
    if (action.kind == StepKind::read) return levels_.seconds_of_read(lane.rank, peer, action.bytes, action.by_link);
    if (action.kind == StepKind::copy_to_all) {
      return levels_.seconds_of_spread(lane.rank, action.bytes, action.way == LaneAction::to_all);
    }
    if (action.kind != StepKind::read_reduce) return levels_.seconds_of_work(action.bytes);
    return levels_.seconds_of_read_reduce(lane.rank, peer, action.bytes, action.by_link);
  }

  // A signal is a store, which takes no time of its own.
  Time signal(LaneState& lane, Time now) {
    record(lane, StepKind::signal, -1, 0, now, now);
    signals_[lane.rank].push_back(now);
    auto& waiting = waiting_[lane.rank];
    for (std::size_t i = 0; i < waiting.size();) {
      if (waiting[i].signals > signals_[lane.rank].size()) {
        ++i;
        continue;
      }
      arrive(waiting[i], lane.rank);
      waiting[i] = waiting.back();
      waiting.pop_back();
    }
    return now;
  }
  void wait(LaneState& lane, const LaneAction& action, Time now) {
    const int peer = ways_.sender(lane.rank, action.way) % period_;
    const Waiting waiting{static_cast<std::size_t>(&lane - lanes_.data()), action.way, signals_[lane.rank].size(), now};
    if (signals_[peer].size() < waiting.signals) {
      waiting_[peer].push_back(waiting);
    } else {
      arrive(waiting, peer);
    }
  }
  // The signal has been given. The wait ends when both have begun and the signal has arrived.
  void arrive(const Waiting& waiting, int peer) {
    const int rank = lanes_[waiting.lane].rank;
    const Time alpha = levels_.between(rank, ways_.sender(rank, waiting.way)).alpha;
    const Time told = waiting.signals == 0 ? 0 : signals_[peer][waiting.signals - 1] + alpha;
    events_.push({std::max(waiting.since, told), EventKind::signal, 0, waiting.way, rank % unit_, waiting.lane, 0, 0, false,
                  waiting.since});
  }
  void pass(const Event& event) {
    LaneState& lane = lanes_[event.lane];
    const int peer = ways_.sender(lane.rank, event.way);
    record(lane, StepKind::wait, peer, 0, event.begun, event.time);
    close_one(lane, event.time);
  }

  void close_one(LaneState& lane, Time time) {
    lane.round_end = std::max(lane.round_end, time);
    if (--lane.open > 0) return;
    ++lane.round;
    const auto at = static_cast<std::size_t>(&lane - lanes_.data());
    events_.push({lane.round_end, EventKind::round, 0, 0, lane.rank % unit_, at, 0, 0, false, 0});
  }

  void post(LaneState& lane, const LaneAction& action, std::uint32_t step, Time now) {
    const bool sends = action.kind == StepKind::send;
    const int sender = sends ? lane.rank : ways_.sender(lane.rank, action.way) % period_;
    const std::uint64_t key =
        (static_cast<std::uint64_t>(sender) * static_cast<std::uint64_t>(size_) + action.way) * most_lanes + lane.lane;
    const Posted mine{now, step, static_cast<std::size_t>(&lane - lanes_.data()), &action};
    const auto [at, first] = posted_.try_emplace(key, mine);
    if (first) return;
    const Posted theirs = at->second;
    posted_.erase(at);
    const Posted& send = sends ? mine : theirs;
    const Posted& receive = sends ? theirs : mine;
    ensure(send.action->kind == StepKind::send && receive.action->kind != StepKind::send &&
               send.action->bytes == receive.action->bytes,
           "A message of rank {} to rank {} does not match; verify() says why.", sender, ways_.receiver(sender, action.way));
    events_.push({std::max(mine.time, theirs.time), EventKind::message, send.step, action.way, sender % unit_, send.lane,
                  receive.lane, action.bytes, receive.action->kind == StepKind::recv_reduce, 0});
  }

  void start(const Event& message) {
    LaneState& sender = lanes_[message.lane];
    LaneState& receiver = lanes_[message.to_lane];
    const int peer = ways_.receiver(sender.rank, message.way);
    Level& level = levels_.between(sender.rank, peer);
    const auto l = static_cast<std::size_t>(&level - levels_.all().data());

    std::vector<Time*>& ports = ports_;
    const std::size_t set = level.own_ports ? (l + 1) * static_cast<std::size_t>(period_) : 0;
    ports.assign({&out_[set + static_cast<std::size_t>(sender.rank)], &in_[set + static_cast<std::size_t>(receiver.rank)]});
    for (std::size_t inner = 0; inner < l; ++inner) {
      Level& unit = levels_.all()[inner];
      ports.push_back(unit.free_port(unit.out, sender.rank));
      ports.push_back(unit.free_port(unit.in, receiver.rank));
    }
    Time begin = message.time;
    for (const Time* port : ports) begin = std::max(begin, *port);
    const Time released = begin + time_of(level.overhead + static_cast<double>(message.bytes) * level.beta);
    for (Time* port : ports) *port = released;

    const Time arrived = released + level.alpha;
    level.bytes += message.bytes;
    record(sender, StepKind::send, peer, message.bytes, begin, arrived);
    if (message.reduces) {
      events_.push({arrived, EventKind::arrival, 0, message.way, receiver.rank % unit_, message.to_lane, 0, message.bytes,
                    true, begin});
    } else {
      record(receiver, StepKind::recv, sender.rank, message.bytes, begin, arrived);
      close_one(receiver, arrived);
    }
    close_one(sender, arrived);
  }

  void reduce_arrived(const Event& arrival) {
    LaneState& lane = lanes_[arrival.lane];
    const Time end = work(lane, arrival.bytes, arrival.time);
    const int peer = ways_.sender(lane.rank, arrival.way);
    record(lane, StepKind::recv_reduce, peer, arrival.bytes, arrival.begun, end);
    close_one(lane, end);
  }

  void record(const LaneState& lane, StepKind kind, int peer, std::int64_t bytes, Time begin, Time end) {
    if (!wants_timeline_) return;
    timeline_.push_back({lane.rank, lane.lane, static_cast<int>(lane.round), kind, peer, bytes,
                         static_cast<double>(begin) / a_second, static_cast<double>(end) / a_second});
  }

  int size_;
  Ways ways_;
  int period_;
  int unit_;  // ranks in a unit that may stand for all; gives simultaneous events the same order whether it does or not
  bool wants_timeline_;
  Levels levels_;
  std::vector<std::vector<Time>> signals_;     // by rank: the times at which it gave its signals
  std::vector<std::vector<Waiting>> waiting_;  // by the rank that must signal
  std::vector<LaneState> lanes_;
  // By rank, the times until which these are busy: its ports (first those of shared levels, then its own), and the rank
  // itself.
  std::vector<Time> out_, in_, busy_;
  std::vector<Time> finish_;
  std::vector<Time*> ports_;  // ports of the message that starts
  std::priority_queue<Event> events_;
  std::unordered_map<std::uint64_t, Posted> posted_;
  std::vector<TimedStep> timeline_;
};

}  // namespace

Simulation simulate(int size, const std::function<Plan(int)>& plan_of, std::int64_t element_bytes, const LinkModel& links,
                    const SimulationOptions& options) {
  require(size >= 1, "A group of {} ranks cannot be simulated.", size);
  require(!links.levels.empty() && links.local_gbs > 0, "A link model needs a level, and a positive local_gbs.");
  const int most = links.levels.back().ranks;
  require(most == 0 || size <= most, "The link model's outermost level, {}, holds {} ranks; {} do not fit.",
          links.levels.back().name, most, size);
  const Compiler compiler(size, plan_of, element_bytes, options.in_place);
  const int unit = unit_of(size, links);
  const auto is_power_of_two = [](int number) { return (number & (number - 1)) == 0; };
  Ways ways{size, false};
  bool alike = units_are_alike(unit, compiler, ways);
  if (!alike && is_power_of_two(size) && is_power_of_two(unit)) {
    alike = units_are_alike(unit, compiler, {size, true});
    ways.bits = alike;
  }
  const bool one_for_all = alike && options.symmetry && !options.timeline;
  return Machine(ways, one_for_all ? unit : size, unit, links, compiler, options.timeline).run();
}

Simulation simulate(const PlanRequest& request, std::int64_t element_bytes, const LinkModel& links,
                    const SimulationOptions& options) {
  return simulate(
      ranks_of(request),
      [&](int rank) {
        PlanRequest its = request;
        its.rank = rank;
        return make_plan(its);
      },
      element_bytes, links, options);
}

}  // namespace stretto
