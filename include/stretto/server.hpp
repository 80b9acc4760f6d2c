#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/export.hpp"
#include "stretto/kernels.hpp"
#include "stretto/plan.hpp"
#include "stretto/push_filters.hpp"
#include "stretto/tensor.hpp"

// Parameter servers (Li et al. 2014): some ranks of a group hold values, sum what the others push, and update; the others,
// the workers, push and pull. Values are tables of elements, cut into parts that consistent hashing deals out to the
// servers.
//
//   ServerSet servers(world, {{"weights", elements, DType::f32, initial, server_functions::sgd({.lr = 0.1, .momentum =
//   0})}},
//                     {.servers = 2, .consistency = Consistency::bounded(1)});
//   if (servers.is_server()) return servers.serve();
//   for (int step = 0; step < steps; ++step) {
//     servers.wait(servers.pull(0, weights));
//     ... compute gradient ...
//     servers.wait(servers.push(0, gradient));
//   }
//   servers.leave();
namespace stretto {

// The consistency of a table says which version of the values a pull may read, unless the pull says so itself
// (ServerSet::Task). A worker's clock, for a table, is the number of its pushes; except with `eventual`, all workers must
// push a table equally often. A pull that needs a push of a worker that has left is refused (ServerSet::wait()).
struct STRETTO_API Consistency {
  enum class Kind : std::uint8_t {
    bounded,  // at clock t: the newest version, which has all pushes of clocks below t - delay of all workers
    exact,    // at clock t: the version with the pushes of clocks below max(0, t - delay), and no others: the same bits in
              // each run
    eventual  // whatever there is: each push is applied when it arrives, and no pull waits
  };
  Kind kind = Kind::bounded;
  int delay = 0;

  static Consistency sequential() { return {}; }  // a pull at clock t has the pushes of all clocks below t
  static Consistency bounded(int delay) { return {Kind::bounded, delay}; }
  static Consistency exact(int delay) { return {Kind::exact, delay}; }
  static Consistency eventual() { return {Kind::eventual, 0}; }
};

// What a server function gets. pushed: the sum of all workers' pushes of a clock, added in the order of workers, or with
// `eventual` one push. All tensors have one size and type.
struct ServerUpdate {
  std::int64_t first = 0;     // of a dense table: the number of the first element in the table
  Tensor values;              // of a part; the function changes them
  std::vector<Tensor> state;  // of the function, one tensor for each slot, zeros at first; it changes them, too
  Tensor pushed;
  std::int64_t updates = 0;  // before this one
  int pushes = 1;            // in the sum
};
// Changes values by what is pushed. What it computes must depend on its arguments only: all servers that have a copy of the
// values call it. Sparse tables take only functions without slots.
struct ServerFunction {
  std::function<void(const ServerUpdate& update)> update;
  int slots = 0;
};
namespace server_functions {
STRETTO_API ServerFunction sum();     // values += pushed
STRETTO_API ServerFunction assign();  // values = pushed
// Optimizers' steps, for tables of f32 and f64. gradient_scale multiplies the sum; with `mean` it is divided by the number
// of pushes, which is smaller when a worker has been lost.
STRETTO_API ServerFunction sgd(const kernels::SGDStep& step, bool mean = false);
STRETTO_API ServerFunction adamw(const kernels::AdamWStep& step, bool mean = false);  // counts steps by itself
}  // namespace server_functions

// A dense table has `elements` elements. A sparse one has a row of `width` elements for each key of 64 bits that was ever
// pushed or pulled; its update is called with the rows [keys, width] of a push, and must have no slots: sum(), assign(),
// sgd() without momentum. Rows of any_length are as long as the first push or pull of their key says, and an update gets
// them one behind the other; such a table takes neither filters nor a key cache.
struct ServedTable {
  static constexpr std::int64_t any_length = -1;
  std::string name;
  std::int64_t elements = 0;  // 0 for a sparse table
  DType dtype = DType::f32;
  // Gives elements from `first` on their first values; empty: zeros. Each server of a part calls it, and all must get the
  // same values: they may depend on the numbers of the elements only.
  std::function<void(const Tensor& values, std::int64_t first)> initial;
  ServerFunction update;
  std::int64_t width = 0;  // above 0, or any_length: a sparse table
  // Likewise for the row of a key, which each server makes by itself when the key first comes; empty: zeros.
  std::function<void(const Tensor& row, std::uint64_t key)> initial_row = nullptr;
  // For sparse tables: a list of keys that a worker has sent to a part with its last message travels as 8 bytes.
  bool key_cache = false;
  std::vector<FilterKind> filters = {};  // of pushes
  // Messages of tables with a higher one pass those of others that wait for the same link, on workers and servers; all ranks
  // must give the same. Those of one table keep their order. Without effect where nothing waits.
  int priority = 0;
  std::optional<Consistency> consistency = std::nullopt;  // none: ServerSet::Options::consistency
  bool is_sparse() const { return width != 0; }
};

// Consistent hashing (Karger et al. 1997): each server has some points on a ring of hashes, and a key belongs to the server
// of the first point behind its own hash. A server that joins takes keys from others, and no other key moves.
class STRETTO_API HashRing {
 public:
  explicit HashRing(int points = 64) : points_(points) {}
  void add(int server);
  void remove(int server);
  int owner(std::uint64_t key) const;               // throws Error(invalid_argument) without a server
  std::vector<int> order(std::uint64_t key) const;  // all servers, as their first points follow the key's hash

 private:
  std::size_t point_behind(std::uint64_t key) const;

  int points_;
  std::vector<std::pair<std::uint64_t, int>> ring_;  // ascending
};

// All ranks give the same tables and options. One thread of a rank uses the object at a time. With the setting
// STRETTO_SERVERS_PORT, the i-th server listens on that port + i for who asks for its state (server_state()).
//
// A lost rank ends the job with an error on all others, which names what a lost server held. With `copies` or
// `survivors_go_on` the others go on: servers and workers call Job::shrink() themselves, within the calls that find the
// loss. All communicators of the job are then unusable but ranks(), so that the set must have all ranks of the job, and one
// job has one such set. A rank that computes, or waits for something else, holds up the others until its next call, unless
// it attends.
// - A lost server: the next server of each of its parts, which has a copy, takes its place, and copies the part to one more.
//   Each push is applied exactly once; a pull never reads what a loss could take back. If all copies of a part are lost,
//   the calls of all ranks throw Error(peer_lost), which names its elements.
// - A lost worker: its pushes are no longer waited for. The last ones may have reached some parts only.
// - Processes cannot go on without rank 0 of the job (Job::shrink()), and those that launch() starts need
//   LaunchOptions::survivors_go_on.
// - A rank that neither attends nor makes a call within the job's timeout (STRETTO_TIMEOUT) after a loss is left behind, and
//   its calls throw Error(peer_gave_up). So is a server whose function takes longer than that, attending or not.
// Whatever error ends the set on a rank, each later call that communicates throws it again. What a function of the caller
// throws (initial, update, answer) ends the set on that rank, and serve() throws it.
class STRETTO_API ServerSet {
 public:
  struct Options {
    int servers = 1;               // the last ranks of the group
    Consistency consistency = {};  // of tables that have none of their own
    int points = 64;               // of a server on the ring
    std::int64_t part_elements = std::int64_t{1} << 18;
    std::size_t inbox_bytes = std::size_t{64} << 20;  // a server takes further messages off the links below this
    // Servers besides the first one that have each part: chain replication (van Renesse and Schneider 2004) of the sums of
    // pushes. Each needs the memory of the values once more; a worker keeps what it has pushed until all have it.
    int copies = 0;
    // The last so many servers have no parts until they join(). Not with copies or survivors_go_on.
    int spares = 0;
    bool survivors_go_on = false;  // when a worker is lost; also without copies
  };
  // Collective. Throws Error(invalid_argument) for options that cannot be, on all ranks; also for copies or survivors_go_on
  // in a process that uses a GPU, since its job cannot shrink. Tables lie in host memory.
  ServerSet(const Communicator& ranks, std::vector<ServedTable> tables, const Options& options);
  ~ServerSet();
  ServerSet(const ServerSet&) = delete;
  ServerSet& operator=(const ServerSet&) = delete;

  bool is_server() const;
  int workers() const;
  // Its rank in the communicator of the constructor; with servers that join, as far as a worker has been told.
  int server_of(int table, std::int64_t element) const;
  // The plan (plan.hpp) by which this rank takes part in push_pull() of a dense table with one server (its rank, as from
  // server_of()): an all-reduce of the server's parts, part by part. Workers keep their ranks; the server has the next one,
  // and contributes its values (server_functions::sum()). A worker and that server may ask; verify() (planning/proof.hpp)
  // proves the plans of all. Does not communicate.
  Plan push_pull_plan(int table, int server) const;
  // The communicator of the constructor, or after a loss that of the ranks that are left.
  Communicator ranks() const;

  // From now on, until leave() returns or the object is destroyed, a thread of the set answers losses while this rank has no
  // call under way: workers may then compute, or wait for one another in a job of their own (launch.hpp: connect()), however
  // long. All else that communicates within the set's job must have ended, since the thread calls Job::shrink(). Ranks may
  // differ. Functions of the caller may then run in that thread. Does nothing if ranks do not go on after losses. Costs 50
  // looks a second.
  void attend();

  // A part of a dense table at a server. Nobody may keep the tensors; their contents may be replaced while no worker has a
  // push or a pull under way, and must then be on all servers that have the part.
  struct HeldPart {
    int table = 0;
    std::int64_t first = 0;  // the number of the first element in the table
    Tensor values;
    std::vector<Tensor> state;
    std::int64_t updates = 0;  // in the values
    bool is_copy = false;      // with copies: workers talk to another server that has it
  };
  // A worker's ask() at a server.
  struct Question {
    std::string text;
    int server = 0;               // the place of this server among those that are left
    std::vector<HeldPart> parts;  // that it has, by table and elements
  };
  using Answer = std::function<std::string(const Question& question)>;

  // Servers: answers workers until the last one has left. The thread sleeps while nothing comes. `answer` is called for each
  // ask(), and everything else waits until it returns; what it throws ends the set.
  void serve(const Answer& answer = {});
  // Spares, before serve(): takes the parts whose owner on the ring of servers that serve it then is, from serve() on, while
  // workers push and pull: no other part moves, no push is lost or applied twice, and values keep their bits.
  // Workers wait in leave() for each spare's serve(), also for those that never join.
  void join();

  // Workers. push() adds one to the table's clock. A push is done when its bytes have left, a pull when all parts have come;
  // the tensors, of the table's type and size, must stay as they are until then. If ranks go on after losses, the tensor of
  // a push is free at once, and a push first blocks until the pulls of its table are done; not so behind Task::after. Pulls
  // and pushes of a table take effect in the order of the calls.
  class Pending {
   public:
    Pending() = default;

   private:
    friend class ServerSet;
    Pending(std::uint64_t request, std::uint64_t set) : request_(request), set_(set) {}
    std::uint64_t request_ = 0, set_ = 0;
  };
  // How one push or pull waits: behind other pushes and pulls, and a pull for other workers' pushes.
  struct Task {
    // It begins when these are done, in the call of this rank that finds it: poll(), wait(), ask(), leave(), push() or
    // pull(). So what a pull brings may be pushed without a wait. One that is refused is done, as is a default Pending; one
    // of another set is refused. Until it begins it takes no clock, and later pushes and pulls of its table wait behind it.
    // Its tensors, and theirs, must stay until they are done, also if ranks go on after losses. What a filter then throws
    // is thrown by wait(), and it makes no push. Other workers may wait for its clock: this rank must not wait for them by
    // other means, also behind attend().
    std::vector<Pending> after;
    // A pull's own consistency, instead of its table's. At clock t of this worker, sequential() and bounded(d) bring the
    // newest version, which has all pushes of clocks below t - d of all workers, and eventual() what there is. exact() is
    // refused: servers keep older versions only for tables that are exact. So sequential() brings all pushes of workers that
    // meet, whatever the table's consistency. All get the same values if none pushes further, or with an eventual table
    // leaves, before all have them.
    std::optional<Consistency> consistency;
  };
  Pending push(int table, const Tensor& pushed, const Task& task = {});
  Pending pull(int table, const Tensor& values, const Task& task = {});
  // The pull is at the clock behind the push. Only a few parts are on their way to each server at a time: the others leave
  // in this rank's poll(), wait(), ask() or leave(), or with its next push or pull of the table. Until then other workers
  // may not get their values: this rank must not wait for them by other means, also behind attend().
  Pending push_pull(int table, const Tensor& pushed, const Tensor& values, const Task& task = {});
  // Sparse tables. keys ascend, each once; rows: [keys, width], in their order. A clock counts pushes of any keys.
  // lengths: of rows of any_length, from 1 on, one for each key, and none for other tables; rows then lie one behind the
  // other. A key keeps its first length; for another one wait() throws Error(invalid_argument) and names worker, key, table
  // and both lengths, a line for each part of the keys that has one. Nothing of the push or pull is then applied in such a
  // part; its other parts are, and clocks count it. Such a push is done when its servers have answered. A lost server takes
  // lengths known from pulls with it.
  Pending push(int table, const std::vector<std::uint64_t>& keys, const Tensor& rows,
               const std::vector<std::int64_t>& lengths = {}, const Task& task = {});
  Pending pull(int table, const std::vector<std::uint64_t>& keys, const Tensor& rows,
               const std::vector<std::int64_t>& lengths = {}, const Task& task = {});
  // Throws Error(invalid_argument) if a server has refused it: for a length, because there is no memory for the rows of a
  // pull, or because a pull needs a push of a worker that has left, which the error names. It also throws if an earlier push
  // that had been accepted was refused behind a loss, and if ranks go on after losses, once if an earlier push waits for
  // one of a worker that has left: leave() then does not wait for it. It is done in all cases.
  void wait(const Pending& pending);
  // Workers. `done` is called once, with what wait() would throw or null, in the poll(), wait(), ask() or leave() of this
  // rank that finds the push or pull done, and by the thread of that call. It may call the set again; the function of what
  // it begins is called by a later call. What it throws comes out of that call, unless that has an error of its own, which
  // comes out then. wait() then has nothing left to do. If wait() has returned before, the next such call has null for it. A
  // set that ends calls no more of them.
  using Done = std::function<void(const std::exception_ptr& refused)>;
  void when_done(const Pending& pending, Done done);
  // Workers. Sends and takes what it can without waiting. Throws like wait(), but for refusals of what is still waited for.
  void poll();
  // Sends a text to all servers, and returns what the `answer` of each returns, in their order: for programs whose servers
  // write what they hold to files, or read it. Parts are at the versions that they have by then; those of workers that have
  // met (Task::consistency) have all pushes. Pushes that wait (Task::after) come behind it. After a loss all that are left
  // are asked again. Throws Error(invalid_argument) if a server has no `answer`. Not for sets with spares, to which parts
  // move.
  std::vector<std::string> ask(const std::string& text);
  // Updates in what the last pull has brought of those that were waited for, or were found done: the least of all parts that
  // it had keys of. An earlier pull that is found done behind a later one changes nothing.
  std::int64_t version(int table) const;
  // Says goodbye to the servers, behind everything pushed. A worker must call it before the object is destroyed. If ranks go
  // on after losses, it returns when all workers have called it, and all copies have every push but those that wait
  // for pushes of a worker that has left. It throws once, as wait() does, with a line for each such push, and for what
  // servers have refused and nobody has waited for; call it again then.
  void leave();

  struct Traffic {
    std::uint64_t payload = 0, heads = 0,
                  messages = 0;  // sent by this rank: bytes of values, of what precedes them, messages
  };
  Traffic traffic() const;
  // Servers: which parts this one has, their clocks, copies and queues, and what it has sent, as text. From any thread.
  std::string state() const;

 private:
  struct STRETTO_HIDDEN State;
  std::unique_ptr<State> state_;
};

// ServerSet::state() of the server that listens at a port (STRETTO_SERVERS_PORT), for a process that has the job's
// STRETTO_JOB_SECRET. Throws Error(unavailable) or Error(invalid_argument) with the reason if there is no answer within
// `seconds`.
STRETTO_API std::string server_state(const std::string& host, int port, double seconds = 5);

}  // namespace stretto
