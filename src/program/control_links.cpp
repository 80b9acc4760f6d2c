#include "program/control_links.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "stretto/ledger.hpp"

namespace stretto {
namespace {

constexpr std::size_t most_inbox_bytes = std::size_t{256} << 20;  // handlers take messages off at once

std::vector<int> numbers(int first, int last) {
  std::vector<int> result;
  for (int i = first; i < last; ++i) result.push_back(i);
  return result;
}

}  // namespace

Tensor bytes_of(const std::string& text) {
  if (text.empty()) return {};
  Tensor bytes({static_cast<std::int64_t>(text.size())}, DType::u8, Device::cpu);
  std::copy(text.begin(), text.end(), static_cast<char*>(bytes.raw()));
  return bytes;
}

std::string text_of(const ReceivedMessage& message) {
  if (!message.bytes) return "";
  return {static_cast<const char*>(message.bytes.raw()), message.bytes.bytes()};
}

ControlLinks::ControlLinks(const Communicator& world, int executors) : world_(world) {
  const bool is_executor = world.rank() < executors;
  std::vector<int> others = numbers(1, executors);
  const std::vector<int> all = numbers(0, executors), clients = numbers(executors, world.size());
  std::vector<int> scheduler_and_clients = clients;
  scheduler_and_clients.insert(scheduler_and_clients.begin(), 0);
  for (const bool towards_executors : {true, false}) {
    auto& direction = *directions_.emplace_back(std::make_unique<Direction>());
    direction.ranks = world.duplicate(towards_executors ? "programs: to executors" : "programs: from executors");
    // What rank 0 and what other ranks hear and say, towards executors; away from them it is the other way round.
    direction.senders = !is_executor ? std::vector<int>() : world.rank() == 0 ? clients : scheduler_and_clients;
    direction.receivers = !is_executor ? all : world.rank() == 0 ? others : std::vector<int>();
    if (!towards_executors) std::swap(direction.senders, direction.receivers);
    if (!direction.senders.empty()) {
      direction.in = std::make_unique<Mailbox>(direction.ranks, direction.senders, most_inbox_bytes);
    }
    if (!direction.receivers.empty()) {
      direction.out = std::make_unique<Mailbox>(direction.ranks, direction.receivers, most_inbox_bytes);
    }
  }
}

ControlLinks::~ControlLinks() { join(); }

void ControlLinks::start(const Handler& handler, const OnLoss& on_loss) {
  handler_ = handler;
  on_loss_ = on_loss;
  for (const auto& direction : directions_) {
    if (direction->in) direction->thread = std::thread([this, its = direction.get()] { listen(*its); });
  }
}

void ControlLinks::listen(Direction& direction) {
  try {
    const auto is_open = [&](int sender) { return direction.in->is_open(sender); };
    while (std::ranges::any_of(direction.senders, is_open)) {
      const ReceivedMessage message = direction.in->receive();
      if (message.head.kind == static_cast<std::uint32_t>(ControlKind::goodbye)) direction.in->close(message.from);
      enter(direction.ranks, Collective::recv, message.from, message.head.bytes + sizeof(MessageHead), now_seconds());
      handler_(message);
    }
  } catch (...) {
    on_loss_(std::current_exception());
  }
}

void ControlLinks::enter(const Communicator& ranks, Collective collective, int peer, std::uint64_t bytes,
                         double begun) const {
  const bool sends = collective == Collective::send;
  const auto its_node = [&](int rank) { return ranks.nodes()[static_cast<std::size_t>(rank)]; };
  const int peer_in_job = ranks.job_ranks()[static_cast<std::size_t>(peer)];
  Partners partners{ranks.id(), ranks.job_ranks(), {}, {}};
  (sends ? partners.sends_to : partners.receives_from).push_back(peer_in_job);
  Record record;
  record.collective = collective;
  record.group = ranks.name();
  record.group_size = ranks.size();
  record.dtype = DType::u8;
  record.count = static_cast<std::int64_t>(bytes);
  record.bytes_sent = sends ? bytes : 0;
  record.bytes_between_nodes = sends && its_node(peer) != its_node(ranks.rank()) ? bytes : 0;
  record.partners = std::make_shared<const Partners>(std::move(partners));
  record.stream = "control";
  record.tag = "program";
  record.root = peer;
  record.times = {begun, begun, now_seconds(), 0};
  world_.job().ledger().enter(std::move(record));
}

void ControlLinks::send(int to, MessageHead head, const Tensor& bytes) {
  if (to == world_.rank()) {
    head.bytes = bytes ? bytes.bytes() : 0;
    return handler_({to, head, bytes});
  }
  const std::lock_guard lock(sending_);
  for (const auto& direction : directions_) {
    if (std::ranges::find(direction->receivers, to) == direction->receivers.end()) continue;
    const double begun = now_seconds();
    head.bytes = bytes ? bytes.bytes() : 0;
    direction->out->send(to, head, bytes);
    direction->out->send_all();
    enter(direction->ranks, Collective::send, to, head.bytes + sizeof(MessageHead), begun);
    return;
  }
  ensure(false, "Rank {} sends rank {} a message of kind {}, and programs have no link there.", world_.rank(), to,
         head.kind);
}

void ControlLinks::join() {
  for (const auto& direction : directions_) {
    if (direction->thread.joinable()) direction->thread.join();
  }
}

}  // namespace stretto
