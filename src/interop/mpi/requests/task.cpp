#include "requests/task.hpp"

#include <cstring>
#include <string>

#include "door.hpp"

namespace stretto::mpi_door {

void Task::pack() {
  input.pack();
  for (Message& message : messages) {
    if (message.sends) message.carried.pack();
  }
  for (ToItself& own : to_itself) {
    own.from.pack();
    if (own.from.bytes() != own.to.bytes()) {
      give_up("A rank gives itself " + std::to_string(own.from.bytes()) + " bytes and expects " +
              std::to_string(own.to.bytes()) + " from itself; MPI demands the same of both.");
    }
    if (own.from.bytes() > 0) {
      std::memcpy(own.to.data(), own.from.data(), static_cast<std::size_t>(own.from.bytes()));
    }
    own.to.unpack();
  }
}

Work Task::start(const Communicator& communicator, const Stream& stream) {
  if (!is_messages) return communicator.start(call, stream);
  OperationGroup together;
  for (Message& message : messages) {
    Carried& bytes = message.carried;
    if (message.sends) {
      communicator.send(bytes.data(), bytes.bytes(), DType::u8, message.peer, stream);
    } else {
      communicator.recv(bytes.data(), bytes.bytes(), DType::u8, message.peer, stream);
    }
  }
  return together.end();
}

void Task::unpack() {
  output.unpack();
  for (Message& message : messages) {
    if (!message.sends) message.carried.unpack();
  }
}

}  // namespace stretto::mpi_door
