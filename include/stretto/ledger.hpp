#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/method.hpp"
#include "stretto/quantization.hpp"
#include "stretto/stream.hpp"

// The ledger: a log of a rank's communication. The trainer's output, the tests that compare traffic with a formula, the
// error message of a timeout and the flight recorder (Job::write_flight) use it. The ledger synchronises no
// streams.
//
// An operation is "immediate" if it is on an inline stream, between ranks of one host. An immediate operation costs two
// reads of the clock and 48 bytes stored; any other operation costs an allocation. Immediate operations become records
// later: when the ledger is read, or when the next operation that is not immediate is entered. One that fails becomes a
// record at once.
namespace stretto {

class FastPathLog;

// The ranks between which an operation moves bytes. Operations with the same partners may share one object. All numbers
// are ranks in the job.
struct Partners {
  std::uint64_t group_id = 0;      // the same on all members. group_id and `members` together identify the communicator
  std::vector<int> members;        // the communicator's ranks, in order
  std::vector<int> sends_to;       // ranks to which this rank sends, or into whose memory it writes
  std::vector<int> receives_from;  // ranks from which this rank receives, or whose memory it reads
};

// A line of the program. `file` must stay valid as long as the job: a program must not unload code that called Stretto.
struct STRETTO_API CallSite {
  const char* file = nullptr;  // null: unknown
  int line = 0;
  static constexpr CallSite here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
  std::string to_string() const;  // the last folder and the name, "gpt/train.cpp:33"; empty if it is unknown
};

struct STRETTO_API Record {
  // The operation's number on this rank, over all communicators. An operation gets its number when it is enqueued. An
  // immediate operation gets its number when it becomes a record; immediate operations are ordered by start time.
  std::uint64_t sequence = 0;
  // The operation's number in its communicator, from 1 on: among its collectives, or, for a message, among the messages
  // from the one rank to the other. The members that take part in an operation give it the same number.
  std::uint64_t number = 0;
  Collective collective = Collective::all_reduce;
  Method method = Algorithm::automatic;  // the chosen one; Algorithm::user for a plan of the caller's own
  std::string plan;                      // the name of that plan
  std::string group;                     // name of the communicator
  int group_size = 0;
  DType dtype = DType::f32;                           // type of the elements on the wire, unless quantized
  QuantizedFormat quantized = QuantizedFormat::none;  // format on the wire, if the elements are quantized
  std::int64_t count = 0;                             // elements, as the caller passed it
  std::uint64_t bytes_sent = 0;           // bytes that this rank sent, or read from or wrote to other ranks' memory
  std::uint64_t bytes_between_nodes = 0;  // the part of bytes_sent that went between nodes
  std::shared_ptr<const Partners> partners;
  std::string stream;
  std::string tag;  // OperationOptions::tag
  CallSite site;    // OperationOptions::site
  int root = -1;    // or the peer of a message: a rank of the communicator; -1: none
  WorkTimes times;
  bool failed = false;              // then `done` is the time of the error
  bool shares_times = false;        // an earlier record of the same OperationGroup has the same `times`: count them once
  std::string method_text() const;  // "ring*2", or the name of the caller's plan
  std::string headline() const;     // "all_reduce #42 of 'world' (1000 f32, gradients, at train.cpp:33)"
  std::string to_string() const;    // one line
};

struct STRETTO_API Traffic {  // sums over records
  std::uint64_t operations = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_between_nodes = 0;
  double busy_seconds = 0;     // the sum of the operations' durations, even if operations overlap
  double exposed_seconds = 0;  // time for which operations blocked computation (WorkTimes::waited)
  Traffic& operator+=(const Record& record);
};

// Each rank has one ledger (Job::ledger()). It keeps the last STRETTO_LEDGER records. Any thread may call any
// function.
class STRETTO_API Ledger {
 public:
  Ledger();
  ~Ledger();

  std::uint64_t next_sequence() const;
  std::vector<Record> records(std::uint64_t since = 0) const;  // records whose sequence >= since
  Traffic traffic(std::uint64_t since = 0) const;
  // The last `count` operations, newest last. Immediate operations in which this rank has been waiting for longer than a
  // moment come behind them; their `done` is 0, and their sequence is that of the next operation.
  std::vector<Record> last(std::size_t count) const;
  std::string last_operations(std::size_t count) const;  // one line for each of last()

  // Internal, for communicators: enters an operation. The ledger reads the operation's times from the attached Work.
  std::uint64_t enter(Record record);
  void attach(std::uint64_t sequence, const Work& work);
  // Internal, for operations whose method is chosen only after all ranks have called: copies the method, the element
  // type and format on the wire, the bytes and the partners from `how`. Other fields of `how` are ignored.
  void settle(std::uint64_t sequence, const Record& how);
  // Internal: adds the log of immediate operations of the communicator with this Partners::group_id. The ledger reads the
  // log until the ledger is its only owner.
  void add(std::shared_ptr<FastPathLog> log, std::uint64_t group_id);
  // Internal: enters an immediate operation that has failed. It no longer waits in the log of its communicator.
  void enter_failed(Record record, FastPathLog& log);
  // Internal: forgets everything so far, as if the job began now.
  void begin_again();
  std::size_t most_records() const;

 private:
  struct STRETTO_HIDDEN Book;
  std::unique_ptr<Book> book_;
};

}  // namespace stretto
