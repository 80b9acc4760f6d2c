#include "program/control/control_links.hpp"

#include <algorithm>

#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"
#include "program/control/look_scope.hpp"
#include "stretto/ledger.hpp"
#include "transport/link_broken.hpp"
#include "transport/network.hpp"

namespace stretto {
namespace {

constexpr std::size_t most_inbox_bytes = std::size_t{256} << 20;  // handlers take messages off at once

// A rank is lost when the job says so and its link has nothing more to give: memory that is shared has it all by then, and a
// connection says that it is broken. If only one of the two has spoken, the other one gets so long.
constexpr double seconds_for_the_other_word = 2;

struct LossNoticed {};  // ends a wait

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

ControlLinks::ControlLinks(const Communicator& world, int executors)
    : world_(world),
      job_(Communicator::Group::of(world).context().job()),
      others_(world.job_ranks().begin() + 1, world.job_ranks().end()) {
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
  job_.do_without(others_);
}

ControlLinks::~ControlLinks() {
  join();
  job_.need(others_);
}

void ControlLinks::start(const Handler& handler, const OnLoss& on_loss) {
  handler_ = handler;
  on_loss_ = on_loss;
  for (const auto& direction : directions_) {
    if (direction->in) direction->thread = std::thread([this, its = direction.get()] { listen(*its); });
  }
}

std::vector<int> ControlLinks::lost_among(const std::vector<int>& ranks, const std::set<int>& known) const {
  std::vector<int> lost;
  if (!job_.any_left()) return lost;
  for (const int rank : ranks) {
    if (!known.contains(rank) && !job_.loss_of(world_.job_ranks()[static_cast<std::size_t>(rank)]).empty()) {
      lost.push_back(rank);
    }
  }
  return lost;
}

std::vector<int> ControlLinks::ended_senders(Direction& direction) const {
  std::vector<int> ended = lost_among(direction.senders, direction.lost_senders);
  std::erase_if(ended, [&](int sender) {
    if (direction.broken.contains(sender)) return false;
    const int in_job = world_.job_ranks()[static_cast<std::size_t>(sender)];
    if (Communicator::Group::of(world_).links().network().over_shared_memory(in_job)) return false;
    const double now = now_seconds();
    return now - direction.heard_of.try_emplace(sender, now).first->second < seconds_for_the_other_word;
  });
  return ended;
}

// Throws if the job has not lost the sender behind a broken link: both live.
void ControlLinks::check_broken(const Direction& direction) {
  for (const auto& [sender, broken] : direction.broken) {
    if (direction.lost_senders.contains(sender) || now_seconds() - broken.since < seconds_for_the_other_word) continue;
    throw broken.error;
  }
}

int ControlLinks::rank_of(const LinkBroken& broken) const {
  return static_cast<int>(std::ranges::find(world_.job_ranks(), broken.peer()) - world_.job_ranks().begin());
}

// Returns nothing if a sender has ended, or, unless it waits, if nothing has come.
std::optional<ReceivedMessage> ControlLinks::receive(Direction& direction, bool waits) const {
  while (true) {
    try {
      if (!waits) {
        direction.in->take_off_links();
        return direction.in->try_receive();
      }
      const LookScope scope([&] {
        if (!ended_senders(direction).empty()) throw LossNoticed();
        check_broken(direction);
      });
      return direction.in->receive();
    } catch (const LossNoticed&) {
      return std::nullopt;
    } catch (const LinkBroken& broken) {
      const int sender = rank_of(broken);
      direction.in->lose(sender);
      direction.broken.try_emplace(sender, BrokenSender{now_seconds(), Error(broken)});
    } catch (const Error&) {  // a wait looks at the job itself, too, and may see a loss before the scope does
      if (lost_among(direction.senders, direction.lost_senders).empty()) throw;
      return std::nullopt;
    }
  }
}

void ControlLinks::take(Direction& direction, const ReceivedMessage& message) {
  if (message.head.kind == static_cast<std::uint32_t>(ControlKind::goodbye)) {
    direction.in->close(message.from);
    direction.lost_senders.insert(message.from);  // its end says nothing any more
  }
  enter(direction.ranks, Collective::recv, message.from, message.head.bytes + sizeof(MessageHead), now_seconds());
  handler_(message);
}

void ControlLinks::listen(Direction& direction) {
  Mailbox& in = *direction.in;
  const auto may_be_heard = [&](int sender) {
    return in.is_open(sender) || (direction.broken.contains(sender) && !direction.lost_senders.contains(sender));
  };
  try {
    while (std::ranges::any_of(direction.senders, may_be_heard)) {
      if (const auto message = receive(direction, true)) take(direction, *message);
      const auto ended = ended_senders(direction);  // of one that ends from here on, messages may be on their way
      if (ended.empty()) continue;
      while (const auto message = receive(direction, false)) take(direction, *message);
      for (const int sender : ended) {
        if (direction.lost_senders.contains(sender)) continue;  // its goodbye was among them
        in.lose(sender);
        direction.lost_senders.insert(sender);
        const std::string how = job_.loss_of(world_.job_ranks()[static_cast<std::size_t>(sender)]);
        handler_({sender, {.kind = static_cast<std::uint32_t>(ControlKind::lost)}, bytes_of(how)});
      }
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
    if (direction->lost_receivers.contains(to)) return;
    const double begun = now_seconds();
    head.bytes = bytes ? bytes.bytes() : 0;
    send(*direction, to, head, bytes);
    enter(direction->ranks, Collective::send, to, head.bytes + sizeof(MessageHead), begun);
    return;
  }
  ensure(false, "Rank {} sends rank {} a message of kind {}, and programs have no link there.", world_.rank(), to,
         head.kind);
}

void ControlLinks::send(Direction& direction, int to, const MessageHead& head, const Tensor& bytes) {
  const auto lost = [&] { return lost_among(direction.receivers, direction.lost_receivers); };
  const auto lose = [&](int receiver) {
    direction.out->lose(receiver);
    direction.lost_receivers.insert(receiver);
  };
  for (bool has_begun = false;;) {
    try {
      const LookScope scope([&] {
        if (!lost().empty()) throw LossNoticed();
      });
      if (!std::exchange(has_begun, true)) direction.out->send(to, head, bytes);
      return direction.out->send_all();
    } catch (const LossNoticed&) {
      for (const int receiver : lost()) lose(receiver);
    } catch (const LinkBroken& broken) {
      lose(rank_of(broken));  // the thread that listens to it learns from the job what has happened
    } catch (const Error&) {  // as in receive()
      if (lost().empty()) throw;
      for (const int receiver : lost()) lose(receiver);
    }
  }
}

std::string ControlLinks::news_of(int rank) const {
  return job_.news_of(world_.job_ranks()[static_cast<std::size_t>(rank)]);
}

void ControlLinks::join() {
  for (const auto& direction : directions_) {
    if (direction->thread.joinable()) direction->thread.join();
  }
}

}  // namespace stretto
