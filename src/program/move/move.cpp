#include "stretto/move.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "core/fail.hpp"
#include "program/move/box.hpp"
#include "stretto/kernels.hpp"
#include "stretto/require_same.hpp"

namespace stretto {
namespace {

// A BlockPart is a run of a block's elements that are consecutive in a rank's memory, in bytes.
struct BlockPart {
  std::size_t tensor;
  bool of_output;
  std::int64_t offset, bytes;
};

// A BlockMessage is a block on its way from or to this rank: its elements one after the other, or their records.
struct BlockMessage {
  std::vector<BlockPart> parts;
  std::int64_t bytes = 0, elements = 0;
  DType dtype = DType::f32;
  QuantizedFormat format = QuantizedFormat::none;
};

// Exchange has the copies and messages of one rank in one phase of a plan.
struct Exchange {
  std::vector<BlockMessage> sent, received;             // in the order of their bytes in the buffers
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
  std::vector<std::vector<BlockMessage>> sent(ranks), received(ranks);
  for (const MoveBlock& block : phase) {
    if (block.source != rank && block.target != rank) continue;
    if (block.source == block.target) {
      match(parts_of(plan, block, rank, block.from_target), parts_of(plan, block, rank, true), result.kept);
      continue;
    }
    const MovedTensor& tensor = plan.tensors[static_cast<std::size_t>(block.tensor)];
    const bool sends = block.source == rank;
    const auto peer = static_cast<std::size_t>(sends ? block.target : block.source);
    (sends ? sent : received)[peer].push_back({parts_of(plan, block, rank, !sends || block.from_target), plan.bytes(block),
                                               block.box.elements(), tensor.dtype,
                                               plan.is_quantized(block) ? tensor.format : QuantizedFormat::none});
    (sends ? result.send_bytes : result.receive_bytes)[peer] += plan.bytes(block);
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

// True if the elements of all messages are one after the other in one tensor: they then need no buffer.
bool are_consecutive(const std::vector<BlockMessage>& messages) {
  const BlockPart* last = nullptr;
  for (const BlockMessage& message : messages) {
    if (message.format != QuantizedFormat::none) return false;
    for (const BlockPart& part : message.parts) {
      if (last != nullptr &&
          (part.tensor != last->tensor || part.of_output != last->of_output || part.offset != last->offset + last->bytes)) {
        return false;
      }
      last = &part;
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

void gather_parts(const Places& places, const BlockMessage& message, std::byte* to) {
  for (const BlockPart& part : message.parts) {
    std::memcpy(to, places.of(part), static_cast<std::size_t>(part.bytes));
    to += part.bytes;
  }
}

void scatter_parts(const Places& places, const BlockMessage& message, const std::byte* from) {
  for (const BlockPart& part : message.parts) {
    std::memcpy(places.of(part), from, static_cast<std::size_t>(part.bytes));
    from += part.bytes;
  }
}

// The elements of a quantized block one after the other: in their own place if they lie so, or in a copy.
struct BlockElements {
  Tensor copy;
  void* at;

  BlockElements(const BlockMessage& message, const Places& places) : at(places.of(message.parts.front())) {
    if (message.parts.size() == 1) return;
    copy = Tensor({message.elements}, message.dtype, Device::cpu);
    at = copy.raw();
  }
};

void pack(const std::vector<BlockMessage>& messages, const Places& places, std::byte* to) {
  for (const BlockMessage& message : messages) {
    if (message.format == QuantizedFormat::none) {
      gather_parts(places, message, to);
    } else {
      const BlockElements elements(message, places);
      if (elements.copy) gather_parts(places, message, static_cast<std::byte*>(elements.at));
      kernels::quantize(message.format, message.dtype, elements.at, to, message.elements);
    }
    to += message.bytes;
  }
}

void unpack(const std::vector<BlockMessage>& messages, const Places& places, const std::byte* from) {
  for (const BlockMessage& message : messages) {
    if (message.format == QuantizedFormat::none) {
      scatter_parts(places, message, from);
    } else {
      const BlockElements elements(message, places);
      kernels::dequantize(message.format, from, message.dtype, elements.at, message.elements);
      if (elements.copy) scatter_parts(places, message, static_cast<const std::byte*>(elements.at));
    }
    from += message.bytes;
  }
}

// The memory of an exchange's messages on one side: the tensor itself, or a buffer.
struct MessageMemory {
  Tensor buffer;
  void* at = nullptr;

  MessageMemory(const std::vector<BlockMessage>& messages, std::int64_t bytes, const Places& places) {
    if (messages.empty()) return;
    if (are_consecutive(messages)) {
      at = places.of(messages.front().parts.front());
    } else {
      buffer = Tensor({bytes}, DType::u8, Device::cpu);
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
    const MessageMemory out(exchange.sent, sum_of(exchange.send_bytes), *places);
    const MessageMemory in(exchange.received, sum_of(exchange.receive_bytes), *places);
    stream.enqueue([state = state_, &exchange, places, out] {
      for (const auto& [from, to] : exchange.kept) {
        std::memcpy(places->of(to), places->of(from), static_cast<std::size_t>(from.bytes));
      }
      if (out.buffer) pack(exchange.sent, *places, static_cast<std::byte*>(out.at));
    });
    last = state_->ranks.all_to_all_v(out.at, exchange.send_bytes, in.at, exchange.receive_bytes, DType::u8, stream,
                                      state_->options);
    last = stream.enqueue([state = state_, &exchange, places, in, out] {
      if (in.buffer) unpack(exchange.received, *places, static_cast<const std::byte*>(in.at));
    });
  }
  return last;
}

}  // namespace stretto
