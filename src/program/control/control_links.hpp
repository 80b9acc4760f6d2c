#pragma once
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "server/mailbox.hpp"
#include "stretto/communicator.hpp"
#include "stretto/error.hpp"

namespace stretto {

class JobControl;
class LinkBroken;

// What a message's head says in `table` is the program, but for compile and goodbye; `request` is the client's number of
// what it asks for, `clock` a run of the program. The scheduler is on rank 0.
enum class ControlKind : std::uint32_t {
  goodbye,    // from anybody to anybody: the sender's last message
  lost,       // from nobody: this rank's links have lost the sender; bytes: a sentence
  compile,    // client to scheduler; bytes: the program
  give_up,    // client to scheduler: it no longer waits for what it has asked to compile
  submit,     // client to scheduler; part: runs
  abandon,    // client to scheduler: begin no further runs, and drop programs that have none
  drop,       // client to scheduler, scheduler to executor: the program has no handle and no run any more
  compiled,   // scheduler to client; bytes: the program with its executors
  refused,    // scheduler to client; part: an ErrorCode; bytes: a sentence
  finished,   // scheduler to client
  failed,     // scheduler to client; bytes: a sentence
  inputs,     // client to executor; bytes: its parts, then the names of all kept inputs
  free,       // client to executor: of a value that it keeps; table, request, part: KeptName
  outputs,    // executor to client; bytes: its parts
  setup,      // scheduler to an executor that does something in the program; bytes: the program with its executors
  place,      // executor to scheduler; bytes: its place in the program's group
  places,     // scheduler to executor; bytes: those of all these executors, or none: the program is refused
  grant,      // scheduler to executor: do this run. part: whether outputs are wanted
  go_on,      // scheduler to executor: do its next step; part: the step
  cancel,     // scheduler to executor: end the program's runs; clock: how often it has been cancelled; part: 1 if it has no
              // further runs: then its preparation ends, too
  no_client,  // scheduler to executor; part: the rank of a client that is lost, and has no programs any more
  repair,     // scheduler to executor: the cancelled runs are over everywhere; request: the last that was given up
  ready,      // executor to scheduler; if it cannot run the program, part: an ErrorCode; bytes: a sentence
  did_step,   // executor to scheduler; part: the step. Sequential programs report its begin
  did_run,    // executor to scheduler; part: for how many microseconds it was busy
  run_failed  // likewise; bytes: a sentence
};

// Text as the bytes of a message, and back.
Tensor bytes_of(const std::string& text);
std::string text_of(const ReceivedMessage& message);

// The messages of clients, executors and the scheduler, which is on rank 0. Executors are ranks 0 to executors - 1, clients
// the ranks behind. Messages go from clients to executors and back, and between rank 0 and other executors. A thread for
// each direction that this rank hears gives them to the handler.
//
// As long as the object lives on rank 0 of the job, the job does without all ranks but that of the scheduler. Messages to a
// rank that is lost are dropped, and behind the last message that came from it, the handler gets one of kind `lost`. send()
// does not wait for the job's word on a link that is broken: the thread that listens to the same rank does.
class ControlLinks {
 public:
  using Handler = std::function<void(const ReceivedMessage&)>;
  using OnLoss = std::function<void(std::exception_ptr)>;
  // Collective. The handler and on_loss are called in threads of this object, between start() and join().
  ControlLinks(const Communicator& world, int executors);
  ~ControlLinks();
  ControlLinks(const ControlLinks&) = delete;
  ControlLinks& operator=(const ControlLinks&) = delete;

  void start(const Handler& handler, const OnLoss& on_loss);
  // Returns when the message has left; the ledger has it. A message to this rank itself is handled at once. Only rank 0
  // may send in a handler: a listening thread of another rank that waited there would take no further messages.
  void send(int to, MessageHead head, const Tensor& bytes = {});
  // The other side sends nothing more to this rank: the handler's word.
  void join();
  // Describes the state of a rank that others wait for in a sentence; empty if the job knows nothing of it.
  std::string news_of(int rank) const;

 private:
  struct BrokenSender {
    double since = 0;
    Error error;
  };
  struct Direction {
    Communicator ranks;
    std::vector<int> senders, receivers;  // those that send to this rank; those that it sends to
    std::unique_ptr<Mailbox> in, out;
    std::set<int> lost_senders, lost_receivers;
    std::map<int, double> heard_of;      // by sender that the job has lost: since when
    std::map<int, BrokenSender> broken;  // by sender
    std::thread thread;
  };
  void listen(Direction& direction);
  std::optional<ReceivedMessage> receive(Direction& direction, bool waits) const;
  void take(Direction& direction, const ReceivedMessage& message);
  void send(Direction& direction, int to, const MessageHead& head, const Tensor& bytes);
  // The ranks among these that the job has lost, and that `known` does not have.
  std::vector<int> lost_among(const std::vector<int>& ranks, const std::set<int>& known) const;
  // Those among the senders that are lost, and from which nothing is on its way any more.
  std::vector<int> ended_senders(Direction& direction) const;
  static void check_broken(const Direction& direction);
  int rank_of(const LinkBroken& broken) const;
  void enter(const Communicator& ranks, Collective collective, int peer, std::uint64_t bytes, double begun) const;

  Communicator world_;
  JobControl& job_;
  std::vector<int> others_;                             // than the scheduler's; as ranks of the job
  std::vector<std::unique_ptr<Direction>> directions_;  // towards executors, and away from them
  std::mutex sending_;
  Handler handler_;
  OnLoss on_loss_;
};

}  // namespace stretto
