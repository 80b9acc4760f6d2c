#pragma once
#include <functional>
#include <list>
#include <string>
#include <thread>

#include "transport/bootstrap/handshake.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/socket.hpp"

namespace stretto {

// Answers whoever asks this rank for its state and knows the job's secret: a TCP port and a thread, which sleeps meanwhile.
// Strangers are dropped after ten seconds, and the oldest of more than 16.
class StateDoor {
 public:
  // meeting: the port, and the secret. Without one, or STRETTO_INSECURE, only this host reaches the port. state() is called
  // in the thread. Throws Error(unavailable) if the port is taken.
  StateDoor(const Meeting& meeting, const RankIntroduction& self, std::function<std::string()> state);
  ~StateDoor();
  StateDoor(const StateDoor&) = delete;
  StateDoor& operator=(const StateDoor&) = delete;

  int port() const { return port_; }

 private:
  void run();
  void accept_one();
  bool look(Arriving& one);  // returns whether the connection needs no further look

  RankIntroduction self_;
  Hash key_;
  std::function<std::string()> state_;
  Socket listener_, stop_;
  int port_ = 0;
  std::list<Arriving> arriving_;
  std::thread thread_;
};

// The state that a door says. Throws Error(unavailable) or Error(invalid_argument) with why there is none.
std::string state_behind(const Meeting& meeting);

}  // namespace stretto
