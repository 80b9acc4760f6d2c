#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "program/control/control_links.hpp"
#include "program/packed_parts.hpp"
#include "program/program_text.hpp"

namespace stretto {

class Client;

struct ProgramRun::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool finished = false;
  std::set<int> missing;  // executors that have parts of outputs
  std::vector<Tensor> outputs;
  std::vector<KeptValue> kept;
  std::string failure;
  std::exception_ptr loss;
  std::weak_ptr<Client> client;

  bool is_done() const { return loss || !failure.empty() || (finished && missing.empty()); }
};

struct KeptValue::State {
  std::weak_ptr<Client> client;
  KeptName name = {};
  ValueType type;
  std::vector<int> executors;

  State() = default;
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

// A client's requests and what has become of them. Listening threads only receive: a message that one of them sent could
// wait for an executor that waits for this client.
class Client : public std::enable_shared_from_this<Client> {
 public:
  struct Compiled {
    ProgramSetup setup;
    ProgramPlan plan;
    std::vector<int> senders;  // executors that send outputs
    std::uint32_t number = 0;
    std::weak_ptr<Client> client = {};

    Compiled() = default;
    ~Compiled();
    Compiled(const Compiled&) = delete;
    Compiled& operator=(const Compiled&) = delete;
  };

  Client(ControlLinks& links, int executors, std::vector<int> nodes)
      : links_(links), executors_(executors), nodes_(std::move(nodes)) {}

  // Any thread may call these two.
  void handle(const ReceivedMessage& message);
  void lose(const std::exception_ptr& why);

  std::shared_ptr<const Compiled> compile(const ProgramSetup& setup, const std::stop_token& cancelled);
  std::shared_ptr<ProgramRun::State> run(const std::shared_ptr<const Compiled>& program, int times,
                                         const std::vector<Tensor>& inputs, const std::vector<KeptValue>& kept);
  // Tells executors that the handles of a program, or of a value, are gone.
  void drop(const Compiled& program);
  void free(const KeptValue::State& value);
  // Lets go of what runs that are over have held, for which executors get messages. The caller's thread sends them.
  void let_go();
  // gives_up: runs that have not begun are given up.
  void leave(bool gives_up);

 private:
  struct OpenRun {
    std::shared_ptr<const Compiled> program;
    std::shared_ptr<ProgramRun::State> state;
    std::vector<KeptValue> inputs;  // held until the run is done
  };
  ReceivedMessage answer_to_compile(const std::string& name, std::uint64_t request, const std::stop_token& cancelled);
  void end(std::uint64_t request);  // under the lock, as the next two
  void take(const ReceivedMessage& message, OpenRun& run);
  void lose_executor(int executor, const std::string& how);
  // Outputs that do not come any more, of a run that is done otherwise.
  void fail_without_outputs(const OpenRun& run) const;
  void send(int to, ControlKind kind, MessageHead head, const Tensor& bytes = {});
  void check_inputs(const Compiled& compiled, const std::vector<Tensor>& inputs, const std::vector<KeptValue>& kept) const;
  void send_inputs(const Compiled& compiled, std::uint64_t request, const std::vector<Tensor>& inputs,
                   const std::vector<KeptValue>& kept);
  void take_outputs(const OpenRun& run, const ReceivedMessage& message) const;

  ControlLinks& links_;
  int executors_;
  std::vector<int> nodes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_request_ = 1;
  std::uint64_t compiling_ = 0;                // the request of a compile() that waits
  std::optional<ReceivedMessage> answer_;      // to it
  std::map<std::uint64_t, OpenRun> runs_;      // that are not done
  std::vector<OpenRun> over_;                  // that let_go() drops
  std::vector<std::uint32_t> unwanted_;        // programs that came when their compile() had ended; let_go() drops them
  std::map<int, std::string> lost_executors_;  // and how
  std::exception_ptr loss_;
  std::atomic<bool> has_left_ = false;
};

}  // namespace stretto
