#include "transport/shm/board.hpp"

#include <algorithm>

namespace stretto {
std::size_t Board::footprint() { return all_rooms + page_bytes; }

Board::Board(const std::vector<Member>& members, int rank) : rank_(rank) {
  static_assert(sizeof(Slots) <= page_bytes && all_rooms % page_bytes == 0);
  for (const Member& member : members) {
    const int file = member.peer ? member.peer->file() : member.own->file();
    memory_.push_back(std::make_unique<Mapping>(file, member.offset, footprint(), all_rooms));
    members_.push_back(reinterpret_cast<Slots*>(memory_.back()->data() + all_rooms));
    words_.emplace_back(file, member.offset);
    if (!member.peer) {
      file_ = file;
      offset_ = member.offset;
      continue;
    }
    bells_.push_back(&member.peer->bell());
    peers_.push_back(member.peer);
  }
}

bool Board::all_posted(std::uint64_t number) {
  if (number <= all_reached_) return true;
  for (std::size_t member = 0; member < members_.size(); ++member) {
    if (line(static_cast<int>(member), number).posts() < number) return false;
  }
  for (const OneWord& word : words_) word.seen();
  all_reached_ = number;
  return true;
}

std::vector<int> Board::without_post(std::uint64_t number) {
  std::vector<int> members;
  for (int member = 0; number > 0 && member < static_cast<int>(members_.size()); ++member) {
    if (line(member, number).posts() < number) members.push_back(member);
  }
  return members;
}

void Board::fetch_ahead(int member, std::size_t bytes) {
  const std::uint64_t next = posted_ + 1;
  if (line(member, next).posts() < next) return;
  __builtin_prefetch(&line(member, next + 1));
  if (bytes <= line_room || bytes > small_room) return;
  const std::byte* const begin = room(member, next, bytes);
  for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(begin + at);
}

void Board::tell(const std::string& operation) {
  Slots& mine = *members_[rank_];
  if (mine.told.load(std::memory_order_relaxed) != 0) return;
  operation.copy(mine.operation.data(), mine.operation.size() - 1);  // the rest is zeros
  words_[rank_].published();
  mine.told.store(1, std::memory_order_release);
  for (Bell* bell : bells_) bell->ring();
}

std::optional<std::string> Board::told_by(int member) const {
  if (members_[member]->told.load(std::memory_order_acquire) == 0) return std::nullopt;
  words_[member].seen();
  return members_[member]->operation.data();
}

bool Board::all_gave_up() const {
  const bool all = std::all_of(members_.begin(), members_.end(),
                               [](const Slots* member) { return member->gave_up.load(std::memory_order_acquire) != 0; });
  for (const OneWord& word : words_) word.seen();
  return all;
}

void Board::commit_rooms(std::size_t bytes) {
  const bool small = bytes <= small_room;
  commit_memory(file_, offset_, small ? small_rooms : all_rooms);
  committed_ = small ? small_room : room_bytes;
}

}  // namespace stretto
