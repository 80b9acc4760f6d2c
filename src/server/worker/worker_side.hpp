#pragma once
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/filters/filter_chain.hpp"
#include "server/filters/key_cache.hpp"
#include "server/live_ranks.hpp"
#include "server/mailbox.hpp"
#include "server/message_kinds.hpp"
#include "server/served_layout.hpp"
#include "stretto/server.hpp"

namespace stretto {

// Around what a filter of the caller has thrown: no loss of a rank, whatever it says.
struct ThrownByFilter {
  std::exception_ptr thrown;
};

// One worker. It sends the parts of its pushes and pulls to their servers, and puts the answers together. If ranks go on
// after losses, it keeps each push until all copies have it, and sends it again after a loss. Its pushes and pulls are
// requests: one is added, begins when what it waits for is done, and is done.
class WorkerSide {
 public:
  // layout and live must outlive the object.
  WorkerSide(const ServedLayout& layout, LiveRanks& live);

  struct Terms {  // ServerSet::Task
    std::vector<std::uint64_t> after;
    std::optional<Consistency> consistency;
  };
  // Return the number of a request, for begin(). pushed, values: null if it does not push or does not pull.
  std::uint64_t add(int table, const Tensor* pushed, const Tensor* values, Terms terms = {});
  // Rows: what is pushed, or where to pull.
  std::uint64_t add(int table, KeyedRows keyed, MessageKind kind, Terms terms = {});
  // Sends what may begin by now. Returns when the request has begun, or waits for more than earlier pulls of its table.
  void begin(std::uint64_t request);
  // Returns at once for a request that is done. Throws Error(invalid_argument) with the sentences of servers that have
  // refused parts of it, or of requests that were done before; it is then done. ask() and leave() likewise. What a filter
  // has thrown comes as ThrownByFilter, also from begin().
  void wait(std::uint64_t request);
  void when_done(std::uint64_t request, ServerSet::Done done);
  void poll();                       // takes what has come without waiting
  struct Outcome {                   // of a request
    std::string refusals;            // of servers, a sentence a line
    std::exception_ptr thrown = {};  // by a filter
  };
  // A request whose function is to be called. wait() has nothing to do for it.
  struct Finished {
    std::uint64_t request = 0;
    ServerSet::Done done;
    Outcome outcome;
  };
  // One before next_request() of an earlier time.
  std::optional<Finished> next_finished(std::uint64_t before);
  std::uint64_t next_request() const { return next_request_; }
  std::vector<std::string> ask(const std::string& text);
  std::int64_t version(int table) const;
  int server_of(std::size_t table, std::size_t part) const;
  bool has_open() const { return !requests_.empty() || !finished_.empty(); }
  void finish_all();  // keeps their refusals for leave()
  void leave();       // behind finish_all()
  void note_left() { left_ = true; }
  // Whether a server has said that all workers have left. A loss does not matter then.
  bool is_over() const { return over_; }
  void take_what_has_come();  // as ServerSide's

  void require_present(const char* what) const;  // throws Error(invalid_argument) if this worker has left
  void resume();                                 // after LiveRanks::go_on()

 private:
  struct Request {
    static constexpr std::int64_t no_version = std::numeric_limits<std::int64_t>::max();
    MessageKind kind = push_part;
    std::size_t table = 0;
    std::vector<std::uint64_t> after = {};          // requests that must be done before this one begins
    std::optional<Consistency> consistency = {};    // of a pull that has its own
    KeyedRows given = {};                           // until it begins: what is pushed, or the keys of a pull
    bool begun = false, begins_later = false;       // than in the caller's push or pull
    std::int64_t clock = 0;                         // from here on, of one that has begun
    std::vector<Tensor> messages;                   // by part: what is sent
    Tensor values;                                  // of a pull
    std::vector<std::vector<std::int64_t>> places;  // of a sparse pull, by part: of the rows that come back
    std::vector<std::int64_t> begins;               // of a sparse pull: of all rows, in `values`
    std::set<std::size_t> missing;                  // parts whose values, or word (message_kinds.hpp), have not come
    std::string refusals;                           // of its parts, a sentence a line
    std::exception_ptr thrown = {};                 // by a filter
    bool is_shown = false;                          // to version() and filters: what it has pulled
    ServerSet::Done done;
    // By server, parts whose messages wait for its answers to earlier ones.
    std::map<int, std::deque<std::size_t>> unsent;
    std::int64_t version = no_version;  // the least of its parts, of which a sparse pull without keys has none
    std::uint32_t flags() const { return consistency ? is_settled : 0; }
  };
  struct KeptPush {
    std::int64_t clock = 0;
    std::uint64_t request = 0;
    Tensor message;
    bool awaits_word = false;  // message_kinds.hpp
    bool is_stuck = false;     // it waits for a push of a worker that has left
  };
  struct TableState {
    std::deque<std::uint64_t> held = {};          // requests that have not begun, in the order of calls
    std::set<std::uint64_t> unanswered = {};      // requests with parts whose values have not come
    std::int64_t clock = 0;                       // pushes
    std::int64_t version = 0;                     // of the last pull
    std::uint64_t last_shown = 0;                 // that pull
    std::vector<std::size_t> order = {};          // in which parts are sent
    std::size_t most_unanswered = 0;              // parts of a push that pulls, for each server
    std::vector<FilterChain> filters = {};        // by part, if the table has some
    std::vector<std::deque<KeptPush>> kept = {};  // by part: pushes that some copy may not have, or that await their word
    std::vector<std::int64_t> applied = {};       // by part: pushes that all copies have
    std::int64_t told_stuck = 0;                  // pushes before this one, which may be stuck: the caller has been told
  };

  // ---- when requests begin, and are done
  std::uint64_t hold(Request request);
  bool has_held() const;
  bool may_begin(const Request& request) const;
  void begin_what_may();
  void begin_first_of(TableState& table);
  void divide(Request& request) const;
  void encode(Request& request);
  void count(std::uint64_t id, Request& request);
  void send(std::uint64_t id, Request& request);
  bool is_done(std::uint64_t id) const;
  bool has_left(std::uint64_t id, const Request& request) const;
  void take_next();
  void forget_sent();
  Outcome finish(std::uint64_t request);    // waits until it is done, and concludes it
  Outcome conclude(std::uint64_t request);  // one that is done
  void show(std::uint64_t id, Request& request);
  // ---- messages
  void send_part(std::uint32_t kind, std::size_t table, std::size_t part, std::int64_t clock, std::uint64_t request,
                 const Tensor& bytes);
  void send_part_of(std::uint64_t id, const Request& request, std::size_t part);
  void send_unsent(std::optional<std::size_t> table = {});  // all that waits, of one table or of all
  void take(const ReceivedMessage& message);
  void take_values(const ReceivedMessage& message);
  void take_word(const ReceivedMessage& message);
  void take_answer(std::uint64_t id, Request& request, std::size_t part);
  void take_refusal(const ReceivedMessage& message, std::string& refusals);
  void take_applied(const ReceivedMessage& message);
  void take_stuck(const ReceivedMessage& message);
  void drop_applied(std::size_t table, std::size_t part);
  static void add_line(std::string& refusals, const std::string& sentence);
  void throw_late_refusals();
  void take_move(const ReceivedMessage& message);
  bool awaits_applied() const;
  void take_acknowledgements();
  void say_goodbye();

  const ServedLayout& layout_;
  LiveRanks& live_;
  std::vector<TableState> tables_;
  KeyCache sent_keys_;
  struct NewServer {
    int rank = 0;
    std::uint64_t moves = 0;  // of the part, with the one to it
  };
  std::map<ServedLayout::PartKey, NewServer> moved_;
  std::map<std::uint64_t, Request> requests_;
  // Callers may never wait for what they push, so that requests_ grows; these have what is looked through at each message.
  std::vector<std::uint64_t> leaving_;      // pushes that may be all but done, until their bytes have left
  std::set<std::uint64_t> with_functions_;  // open ones with Request::done
  std::deque<Finished> finished_;
  std::uint64_t next_request_ = 1;
  std::uint64_t question_ = 0;  // the last one
  struct AnswerOfServer {
    std::string text;
    bool is_refusal = false;
  };
  std::map<int, AnswerOfServer> answers_;  // to it, by server
  std::string late_refusals_;              // of requests that are done: by the next server after a loss, or in leave()
  bool has_any_length_;                    // a table, whose servers accept or refuse pushes
  bool said_goodbye_ = false, over_ = false, left_ = false;
};

}  // namespace stretto
