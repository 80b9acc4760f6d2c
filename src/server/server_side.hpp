#pragma once
#include <cstddef>
#include <map>
#include <utility>

#include "server/mailbox.hpp"
#include "server/served_layout.hpp"
#include "server/served_part.hpp"
#include "server/served_rows.hpp"

namespace stretto {

// What a server does: it hands messages to the parts that it has, and sends what they answer.
class ServerSide {
 public:
  // layout and mailbox must outlive the object.
  ServerSide(const ServedLayout& layout, Mailbox& mailbox, int rank);

  void serve();  // until the last worker has left

 private:
  using PartKey = std::pair<std::size_t, std::size_t>;  // table, part
  void make_parts(std::size_t table);
  void handle(const ReceivedMessage& message);
  void handle_rows(const ReceivedMessage& message);
  void handle_goodbye(int worker);
  void answer(const PartKey& key, ServedPart& part);
  void answer_rows(std::size_t table, ServedRows& rows);

  const ServedLayout& layout_;
  Mailbox& mailbox_;
  int rank_;
  std::map<PartKey, ServedPart> parts_;
  std::map<std::size_t, ServedRows> rows_;  // by sparse table
};

}  // namespace stretto
