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
  std::int64_t passed_at = -1;  // of its records in the memory of those that are passed on; -1: they are not
};

// MoveExchange has the copies and messages of one rank in one phase of a plan.
struct MoveExchange {
  std::vector<BlockMessage> sent, received;             // in the order of their bytes in the buffers
  std::vector<std::pair<BlockPart, BlockPart>> kept;    // copies within the rank: from, to
  std::vector<std::int64_t> send_bytes, receive_bytes;  // by rank
  std::int64_t out_bytes = 0, in_bytes = 0;             // in buffers; 0 for elements that lie one after the other
};

namespace {

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

MoveExchange exchange_of(const MovePlan& plan, const std::vector<MoveBlock>& phase, int rank, const PassedRecords& passed) {
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  MoveExchange result;
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
    const bool is_quantized = plan.is_quantized(block), is_output = !sends || block.from_target;
    const auto place = is_quantized && is_output ? passed.places.find(PassedRecords::name(block)) : passed.places.end();
    (sends ? sent : received)[peer].push_back(
        {parts_of(plan, block, rank, is_output), plan.bytes(block), block.box.elements(), tensor.dtype,
         is_quantized ? tensor.format : QuantizedFormat::none, place == passed.places.end() ? -1 : place->second});
    (sends ? result.send_bytes : result.receive_bytes)[peer] += plan.bytes(block);
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    result.sent.insert(result.sent.end(), sent[r].begin(), sent[r].end());
    result.received.insert(result.received.end(), received[r].begin(), received[r].end());
  }
  if (!are_consecutive(result.sent)) result.out_bytes = sum_of(result.send_bytes);
  if (!are_consecutive(result.received)) result.in_bytes = sum_of(result.receive_bytes);
  return result;
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

// passed: the memory of records that are passed on.
void pack(const std::vector<BlockMessage>& messages, const Places& places, const std::byte* passed, std::byte* to) {
  for (const BlockMessage& message : messages) {
    if (message.passed_at >= 0) {
      std::memcpy(to, passed + message.passed_at, static_cast<std::size_t>(message.bytes));
    } else if (message.format == QuantizedFormat::none) {
      gather_parts(places, message, to);
    } else {
      const BlockElements elements(message, places);
      if (elements.copy) gather_parts(places, message, static_cast<std::byte*>(elements.at));
      kernels::quantize(message.format, message.dtype, elements.at, to, message.elements);
    }
    to += message.bytes;
  }
}

void unpack(const std::vector<BlockMessage>& messages, const Places& places, std::byte* passed, const std::byte* from) {
  for (const BlockMessage& message : messages) {
    if (message.passed_at >= 0) std::memcpy(passed + message.passed_at, from, static_cast<std::size_t>(message.bytes));
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

// The memory of an exchange's messages on one side: the tensor itself, or the buffer.
std::byte* memory_of(const std::vector<BlockMessage>& messages, std::int64_t buffer_bytes, const Places& places,
                     std::byte* buffer) {
  if (messages.empty()) return nullptr;
  return buffer_bytes > 0 ? buffer : places.of(messages.front().parts.front());
}

// What ranks compare of a tensor: memories of other types or formats would be misread.
std::string description(const MovedTensor& tensor) {
  return fmt::format("{} in {}, {} in messages", name(tensor.dtype), text(whole(tensor.shape)), name(tensor.format));
}

std::string places_text(const Division& division) {
  std::string result;
  for (std::size_t i = 0; i < division.ranks.size(); ++i) {
    result += fmt::format("\n{}:", division.ranks[i]);
    for (const Box& box : division.boxes[i]) result += text(box);
  }
  return result;
}

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
  std::vector<MoveExchange> exchanges;
  std::int64_t message_bytes = 0, passed_bytes = 0;  // of the buffer: messages of the largest exchange, records passed on
  OperationOptions options;
};

Move::Move(Communicator ranks, MovePlan plan) {
  require(plan.ranks == ranks.size(), "A move of {} ranks got a group of {}.", plan.ranks, ranks.size());
  std::string blocks = plan.to_string();
  std::vector<NamedValue> compared;
  for (const MovedTensor& tensor : plan.tensors) {
    compared.push_back({fmt::format("tensor {} of a move", compared.size()), description(tensor)});
    blocks += places_text(tensor.from) + "\n" + places_text(tensor.to) + "\n";
  }
  compared.push_back({"the plan of a move", fmt::format("one of {} phases, digest {:016x}", plan.phases.size(),
                                                        std::hash<std::string>()(blocks))});
  require_same(ranks, compared);
  state_ = std::make_shared<State>();
  const PassedRecords passed = passed_records(plan, ranks.rank());
  state_->passed_bytes = passed.bytes;
  for (const auto& phase : plan.phases) {
    const MoveExchange& its = state_->exchanges.emplace_back(exchange_of(plan, phase, ranks.rank(), passed));
    state_->message_bytes = std::max(state_->message_bytes, its.out_bytes + its.in_bytes);
  }
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
  // One buffer for all exchanges: the stream runs them one after the other.
  const std::int64_t bytes = state_->message_bytes + state_->passed_bytes;
  const Tensor buffer = bytes > 0 ? Tensor({bytes}, DType::u8, Device::cpu) : Tensor();
  auto* const messages = buffer ? static_cast<std::byte*>(buffer.raw()) : nullptr;
  std::byte* const passed = messages + state_->message_bytes;
  Work last;
  for (const MoveExchange& exchange : state_->exchanges) {
    std::byte* const out = memory_of(exchange.sent, exchange.out_bytes, *places, messages);
    std::byte* const in = memory_of(exchange.received, exchange.in_bytes, *places, messages + exchange.out_bytes);
    stream.enqueue([state = state_, &exchange, places, buffer, passed, out] {
      for (const auto& [from, to] : exchange.kept) {
        std::memcpy(places->of(to), places->of(from), static_cast<std::size_t>(from.bytes));
      }
      if (exchange.out_bytes > 0) pack(exchange.sent, *places, passed, out);
    });
    last =
        state_->ranks.all_to_all_v(out, exchange.send_bytes, in, exchange.receive_bytes, DType::u8, stream, state_->options);
    last = stream.enqueue([state = state_, &exchange, places, buffer, passed, in] {
      if (exchange.in_bytes > 0) unpack(exchange.received, *places, passed, in);
    });
  }
  return last;
}

}  // namespace stretto
