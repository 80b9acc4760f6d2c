#include "stretto/move.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "core/fail.hpp"
#include "program/move/box.hpp"
#include "stretto/require_same.hpp"

namespace stretto {
namespace {

// A BlockPart is a run of a block's elements that are consecutive in a rank's memory, in bytes.
struct BlockPart {
  std::size_t tensor;
  bool of_output;
  std::int64_t offset, bytes;
};

// Exchange has the copies and messages of one rank in one phase of a plan.
struct Exchange {
  std::vector<BlockPart> sent, received;                // in the order of their bytes in the buffers
  std::vector<std::pair<BlockPart, BlockPart>> kept;    // copies within the rank: from, to
  std::vector<std::int64_t> send_bytes, receive_bytes;  // by rank
};

// Returns the places of a block's elements in a rank's part of a division.
std::vector<BlockPart> parts_of(const MovePlan& plan, const MoveBlock& block, int rank, bool of_output) {
  const MovedTensor& tensor = plan.tensors[static_cast<std::size_t>(block.tensor)];
  const Division& division = of_output ? tensor.to : tensor.from;
  const auto width = static_cast<std::int64_t>(size_of(tensor.dtype));
  std::vector<BlockPart> result;
  for (std::size_t i = 0; i < division.ranks.size(); ++i) {
    if (division.ranks[i] != rank) continue;
    std::int64_t begin = 0;
    for (const Box& box : division.boxes[i]) {
      if (contains(box, block.box)) {
        for (const Run& run : runs(box, block.box)) {
          result.push_back(
              {static_cast<std::size_t>(block.tensor), of_output, (begin + run.offset) * width, run.count * width});
        }
        return result;
      }
      begin += box.elements();
    }
  }
  ensure(false, "Rank {} has no box around {} of tensor {}.", rank, text(block.box), block.tensor);
  return result;
}

// Copies between two lists of parts of equally many bytes.
void match(const std::vector<BlockPart>& from, const std::vector<BlockPart>& to,
           std::vector<std::pair<BlockPart, BlockPart>>& copies) {
  std::size_t a = 0, b = 0;
  std::int64_t from_done = 0, to_done = 0;
  while (a < from.size() && b < to.size()) {
    const std::int64_t bytes = std::min(from[a].bytes - from_done, to[b].bytes - to_done);
    copies.push_back({{from[a].tensor, from[a].of_output, from[a].offset + from_done, bytes},
                      {to[b].tensor, to[b].of_output, to[b].offset + to_done, bytes}});
    if ((from_done += bytes) == from[a].bytes) ++a, from_done = 0;
    if ((to_done += bytes) == to[b].bytes) ++b, to_done = 0;
  }
}

Exchange exchange_of(const MovePlan& plan, const std::vector<MoveBlock>& phase, int rank) {
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  Exchange result;
  result.send_bytes.assign(ranks, 0);
  result.receive_bytes.assign(ranks, 0);
  std::vector<std::vector<BlockPart>> sent(ranks), received(ranks);
  for (const MoveBlock& block : phase) {
    if (block.source != rank && block.target != rank) continue;
    const auto bytes = block.box.elements() *
                       static_cast<std::int64_t>(size_of(plan.tensors[static_cast<std::size_t>(block.tensor)].dtype));
    if (block.source == block.target) {
      match(parts_of(plan, block, rank, block.from_target), parts_of(plan, block, rank, true), result.kept);
    } else if (block.source == rank) {
      const std::vector<BlockPart> parts = parts_of(plan, block, rank, block.from_target);
      auto& list = sent[static_cast<std::size_t>(block.target)];
      list.insert(list.end(), parts.begin(), parts.end());
      result.send_bytes[static_cast<std::size_t>(block.target)] += bytes;
    } else {
      const std::vector<BlockPart> parts = parts_of(plan, block, rank, true);
      auto& list = received[static_cast<std::size_t>(block.source)];
      list.insert(list.end(), parts.begin(), parts.end());
      result.receive_bytes[static_cast<std::size_t>(block.source)] += bytes;
    }
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    result.sent.insert(result.sent.end(), sent[r].begin(), sent[r].end());
    result.received.insert(result.received.end(), received[r].begin(), received[r].end());
  }
  return result;
}

std::int64_t sum_of(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

// True if the parts are one after the other in one tensor: messages then need no buffer.
bool are_consecutive(const std::vector<BlockPart>& parts) {
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].tensor != parts[0].tensor || parts[i].of_output != parts[0].of_output ||
        parts[i].offset != parts[i - 1].offset + parts[i - 1].bytes) {
      return false;
    }
  }
  return true;
}

struct Places {
  std::vector<Tensor> inputs, outputs;

  std::byte* of(const BlockPart& part) const {
    return static_cast<std::byte*>((part.of_output ? outputs : inputs)[part.tensor].raw()) + part.offset;
  }
};

// The memory of an exchange's messages on one side: the tensor itself, or a buffer.
struct Messages {
  Tensor buffer;
  void* at = nullptr;

  Messages(const std::vector<BlockPart>& parts, std::int64_t bytes, const Places& places) {
    if (parts.empty()) return;
    if (are_consecutive(parts)) {
      at = places.of(parts.front());
    } else {
      buffer = Tensor({bytes}, DType::u8);
      at = buffer.raw();
    }
  }
};

void check_tensors(const std::vector<Tensor>& tensors, const MovePlan& plan, int rank, bool of_output) {
  require(tensors.size() == plan.tensors.size(), "A move of {} tensors got {} {}.", plan.tensors.size(), tensors.size(),
          of_output ? "outputs" : "inputs");
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::int64_t wanted = (of_output ? plan.tensors[t].to : plan.tensors[t].from).elements(rank);
    const std::int64_t given = tensors[t] ? tensors[t].size() : 0;
    require(given == wanted &&
                (wanted == 0 || (tensors[t].dtype() == plan.tensors[t].dtype && tensors[t].device() == Device::cpu)),
            "{} {} of a move has {} elements of {} on rank {}; the plan has {} of {} in host memory there.",
            of_output ? "Output" : "Input", t, given, tensors[t] ? name(tensors[t].dtype()) : "no type", rank, wanted,
            name(plan.tensors[t].dtype));
  }
}

}  // namespace

struct Move::State {
  Communicator ranks;
  MovePlan plan;
  std::vector<Exchange> exchanges;
  OperationOptions options;
};

Move::Move(Communicator ranks, MovePlan plan) {
  require(plan.ranks == ranks.size(), "A move of {} ranks got a group of {}.", plan.ranks, ranks.size());
  const std::string blocks = plan.to_string();
  require_same(ranks, {{"the plan of a move", fmt::format("one of {} phases, digest {:016x}", plan.phases.size(),
                                                          std::hash<std::string>()(blocks))}});
  state_ = std::make_shared<State>();
  for (const auto& phase : plan.phases) state_->exchanges.push_back(exchange_of(plan, phase, ranks.rank()));
  state_->options.tag = "move";
  // Most ranks have messages for few others: in turns, those without any would hold up the rest of a link's time.
  const std::vector<int>& nodes = ranks.nodes();
  const bool over_links = std::ranges::any_of(nodes, [&](int node) { return node != nodes.front(); });
  if (over_links) state_->options.method = Algorithm::direct;
  state_->ranks = std::move(ranks);
  state_->plan = std::move(plan);
}
Move::~Move() = default;
Move::Move(Move&&) noexcept = default;

const MovePlan& Move::plan() const { return state_->plan; }

Work Move::start(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs, const Stream& stream) const {
  check_tensors(inputs, state_->plan, state_->ranks.rank(), false);
  check_tensors(outputs, state_->plan, state_->ranks.rank(), true);
  const auto places = std::make_shared<const Places>(Places{inputs, outputs});
  Work last;
  for (const Exchange& exchange : state_->exchanges) {
    const Messages out(exchange.sent, sum_of(exchange.send_bytes), *places);
    const Messages in(exchange.received, sum_of(exchange.receive_bytes), *places);
    stream.enqueue([state = state_, &exchange, places, out] {
      for (const auto& [from, to] : exchange.kept) {
        std::memcpy(places->of(to), places->of(from), static_cast<std::size_t>(from.bytes));
      }
      auto* next = static_cast<std::byte*>(out.buffer ? out.at : nullptr);
      for (const BlockPart& part : exchange.sent) {
        if (next == nullptr) break;
        std::memcpy(next, places->of(part), static_cast<std::size_t>(part.bytes));
        next += part.bytes;
      }
    });
    last = state_->ranks.all_to_all_v(out.at, exchange.send_bytes, in.at, exchange.receive_bytes, DType::u8, stream,
                                      state_->options);
    last = stream.enqueue([state = state_, &exchange, places, in, out] {
      const auto* next = static_cast<const std::byte*>(in.buffer ? in.at : nullptr);
      for (const BlockPart& part : exchange.received) {
        if (next == nullptr) break;
        std::memcpy(places->of(part), next, static_cast<std::size_t>(part.bytes));
        next += part.bytes;
      }
    });
  }
  return last;
}

}  // namespace stretto
