#pragma once
#include <functional>
#include <list>
#include <string>
#include <thread>

#include "transport/bootstrap/handshake.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/socket.hpp"

namespace stretto {

// Whose state a door says.
struct DoorKind {
  const char* name;
  const char* who;      // has it
  const char* setting;  // of the port
};
inline constexpr DoorKind servers_door{"the state of servers", "server", "STRETTO_SERVERS_PORT"};
inline constexpr DoorKind programs_door{"the state of programs", "scheduler", "STRETTO_PROGRAMS_PORT"};

// A door's place, with the job's secret. host: of whoever asks; seconds: how long it waits.
Meeting place_of_door(int port, const std::string& host = "", double seconds = 60);

// Answers whoever asks this rank for its state and knows the job's secret: a TCP port and a thread, which sleeps meanwhile.
// It never waits for one of them: strangers are dropped after ten seconds, readers that do not read after five, and of more
// than 16 of either the oldest.
class StateDoor {
 public:
  // meeting: the port, and the secret. Without one, or STRETTO_INSECURE, only this host reaches the port. state() is called
  // in the thread. Throws Error(unavailable) if the port is taken.
  StateDoor(const Meeting& meeting, const RankIntroduction& self, std::function<std::string()> state,
            const DoorKind& kind = servers_door);
  ~StateDoor();
  StateDoor(const StateDoor&) = delete;
  StateDoor& operator=(const StateDoor&) = delete;

  int port() const { return port_; }

 private:
  struct Answer {
    Socket socket;
    std::string bytes;     // the length of the text, and the text
    std::size_t sent = 0;  // of them
    double since = 0;
  };
  void run();
  void accept_one();
  bool look(Arriving& one);          // returns whether the connection needs no further look
  static bool send(Answer& answer);  // returns whether it needs no further call

  DoorKind kind_;
  RankIntroduction self_;
  Hash key_;
  std::function<std::string()> state_;
  Socket listener_, stop_;
  int port_ = 0;
  double deaf_until_ = 0;  // without a descriptor for the next connection
  std::list<Arriving> arriving_;
  std::list<Answer> answers_;
  std::thread thread_;
};

// The state that a door says. Throws Error(unavailable) or Error(invalid_argument) with why there is none.
std::string state_behind(const Meeting& meeting, const DoorKind& kind = servers_door);

}  // namespace stretto
