#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "server/mailbox.hpp"
#include "server/message_kinds.hpp"
#include "server/served_layout.hpp"

namespace stretto {

// What a worker does: it sends the parts of its pushes and pulls to their servers, and puts together what comes back.
class WorkerSide {
 public:
  // layout and mailbox must outlive the object.
  WorkerSide(const ServedLayout& layout, Mailbox& mailbox, int rank);

  // Return the number of the request. pushed, values: null if it does not push or does not pull.
  std::uint64_t start(int table, const Tensor* pushed, const Tensor* values);
  std::uint64_t start_rows(int table, const std::vector<std::uint64_t>& keys, const Tensor& rows, MessageKind kind);
  void wait(std::uint64_t request);  // returns at once for one that is done
  std::int64_t version(int table) const;
  void leave();

  void require_present(const char* what) const;  // throws Error(invalid_argument) if this worker has left

 private:
  struct Request {
    std::size_t table = 0;
    Tensor values;            // of a pull
    std::size_t missing = 0;  // parts of a pull
    std::int64_t version = std::numeric_limits<std::int64_t>::max();
    bool pushes = false;
    std::map<int, std::vector<std::int64_t>> places = {};  // of a sparse pull, by server: of the rows that it sends
  };
  struct TableState {
    std::int64_t clock = 0;    // pushes
    std::int64_t version = 0;  // of the last pull
  };

  void send_parts(MessageKind kind, int table, std::uint64_t request, const Tensor& pushed);
  void take(const ReceivedMessage& message);
  void take_rows(Request& request, const ReceivedMessage& message);

  const ServedLayout& layout_;
  Mailbox& mailbox_;
  int rank_;
  std::vector<TableState> tables_;
  std::map<std::uint64_t, Request> requests_;
  std::uint64_t next_request_ = 1;
  bool left_ = false;
};

}  // namespace stretto
