#include "requests/task.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "door.hpp"

namespace stretto::mpi_door {
namespace {

// Larger slots would make small messages slower.
constexpr std::int64_t largest_slot = 512;
// Slots between two ranks. The copies of larger ones take longer than messages.
constexpr std::int64_t smallest_slot_of_two = 64, largest_slot_of_two = 8192;
// Stretto's fastest all-to-all has room for this many bytes from a rank.
constexpr std::int64_t all_slots_bytes = 2048;

using Range = std::span<const std::byte>;

bool overlap(Range a, Range b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

// Memory of the program's from which a message is read or into which one is written.
struct Place {
  Range range;
  bool is_written;
};

// Whether a place that is written overlaps another one.
bool any_overlap(std::vector<Place> places) {
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.range.data() < b.range.data(); });
  const std::byte* read_until = nullptr;
  const std::byte* written_until = nullptr;
  for (const Place& place : places) {
    const std::byte* const begin = place.range.data();
    if (begin < written_until || (place.is_written && begin < read_until)) return true;
    const std::byte*& until = place.is_written ? written_until : read_until;
    until = std::max(until, begin + place.range.size());
  }
  return false;
}

}  // namespace

// Two ranks both know all messages, so the slots' size may depend on them: powers of two, so that few plans are made. If a
// message is too large, the slots have the usual size: the call brings both ranks into step, and without it they wait longer
// for each other's messages on busy cores.
std::int64_t Task::slot_of_two() const {
  std::int64_t largest = 0;
  for (const Message& message : messages) largest = std::max(largest, message.carried.bytes());
  if (largest == 0) return 0;
  if (largest > largest_slot_of_two) return largest_slot;
  return std::max(smallest_slot_of_two, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(largest))));
}

void Task::use_slots(Collective collective, const Served& on, int root) {
  if (!on.one_host) return;
  const bool from_each = collective == Collective::gather;
  const bool to_each = collective == Collective::scatter;
  slot_bytes = on.size == 2           ? slot_of_two()
               : from_each || to_each ? largest_slot
                                      : std::min(largest_slot, all_slots_bytes / on.size);
  if (slot_bytes == 0) return;
  const auto whole = static_cast<std::size_t>(slot_bytes * on.size);
  const auto one = static_cast<std::size_t>(slot_bytes);
  const bool is_root = on.rank == root;
  if (!to_each || is_root) given = std::make_unique_for_overwrite<std::byte[]>(from_each ? one : whole);
  if (!from_each || is_root) got = std::make_unique_for_overwrite<std::byte[]>(to_each ? one : whole);
  call.collective = collective;
  call.input = given.get();
  call.output = got.get();
  call.count = slot_bytes;
  call.dtype = DType::u8;
  call.root = root;
}

// In a gather (scatter), a rank has only one slot to send (receive): for the root.
std::byte* Task::slot_of(const Message& message) const {
  const bool one = call.collective == (message.sends ? Collective::gather : Collective::scatter);
  return (message.sends ? given : got).get() + (one ? 0 : slot_bytes * message.peer);
}

void Task::keep_outputs_apart() {
  if (is_messages) {
    std::vector<Place> places;
    const auto add = [&](Range range, bool is_written) {
      if (!range.empty()) places.push_back({range, is_written});
    };
    for (const Message& message : messages) {
      if (!fits_slot(message)) add(message.carried.in_place(), !message.sends);
    }
    if (places.empty()) return;  // pack() reads every input before an output is written
    for (const ToItself& own : to_itself) {
      add(own.from.in_place(), false);
      add(own.to.in_place(), true);
    }
    if (!any_overlap(std::move(places))) return;
    for (Message& message : messages) {
      if (!message.sends) message.carried.be_a_copy();
    }
    for (ToItself& own : to_itself) own.to.be_a_copy();
  } else if (overlap(input.in_place(), output.in_place())) {
    output.be_a_copy();
    call.output = output.data();
  }
}

void Task::pack() {
  input.pack();
  for (Message& message : messages) {
    if (!message.sends) continue;
    message.carried.pack();
    if (!fits_slot(message)) continue;
    std::memcpy(slot_of(message), message.carried.data(), static_cast<std::size_t>(message.carried.bytes()));
  }
  for (ToItself& own : to_itself) {
    own.from.pack();
    if (own.from.bytes() != own.to.bytes()) {
      give_up("A rank gives itself " + std::to_string(own.from.bytes()) + " bytes and expects " +
              std::to_string(own.to.bytes()) + " from itself; MPI demands the same of both.");
    }
    if (own.from.bytes() > 0) {
      std::memmove(own.to.data(), own.from.data(), static_cast<std::size_t>(own.from.bytes()));
    }
  }
}

Work Task::start(const Communicator& communicator, const Stream& stream) {
  Work slots;
  if (!is_messages || slot_bytes > 0) slots = communicator.start(call, stream);
  if (std::all_of(messages.begin(), messages.end(), [&](const Message& message) { return fits_slot(message); }))
    return slots;
  if (messages.size() == 1) return start(messages.front(), communicator, stream);  // saves half a microsecond
  OperationGroup together;
  for (Message& message : messages) {
    if (!fits_slot(message)) std::ignore = start(message, communicator, stream);
  }
  return together.end();
}

Work Task::start(Message& message, const Communicator& communicator, const Stream& stream) {
  Carried& bytes = message.carried;
  return message.sends ? communicator.send(bytes.data(), bytes.bytes(), DType::u8, message.peer, stream)
                       : communicator.recv(bytes.data(), bytes.bytes(), DType::u8, message.peer, stream);
}

void Task::unpack() {
  output.unpack();
  for (ToItself& own : to_itself) own.to.unpack();
  for (Message& message : messages) {
    if (message.sends) continue;
    if (fits_slot(message)) {
      std::memcpy(message.carried.data(), slot_of(message), static_cast<std::size_t>(message.carried.bytes()));
    }
    message.carried.unpack();
  }
}

}  // namespace stretto::mpi_door
