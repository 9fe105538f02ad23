// Peer drives rocketmq-client-go: peer ACTION NAMESRV TOPIC [arguments]. It prints one JSON object a line.
//
//	sync | async | oneway | batch | delay | order TOPIC   sends, and prints the results
//	transaction TOPIC                                     one message committed, one rolled back, one checked
//	consume | consume-orderly TOPIC COUNT                 a push consumer, until it has received COUNT messages
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const patience = 40 * time.Second

var printing sync.Mutex

func say(fields map[string]any) {
	printing.Lock()
	defer printing.Unlock()
	text, err := json.Marshal(fields)
	must(err)
	fmt.Println(string(text))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func message(topic string, body string) *primitive.Message {
	one := primitive.NewMessage(topic, []byte(body))
	one.WithTag("go").WithKeys([]string{"key-" + body}).WithProperty("colour", "grün")
	return one
}

func sent(result *primitive.SendResult) {
	say(map[string]any{
		"status": int(result.Status), "id": result.MsgID, "offsetId": result.OffsetMsgID,
		"queue": result.MessageQueue.QueueId, "offset": result.QueueOffset,
	})
}

func newProducer(namesrv string, options ...producer.Option) rocketmq.Producer {
	options = append(options,
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		producer.WithGroupName("go_producers"), producer.WithRetry(2), producer.WithSendMsgTimeout(patience))
	made, err := rocketmq.NewProducer(options...)
	must(err)
	must(made.Start())
	return made
}

func send(action string, namesrv string, topic string) {
	var options []producer.Option
	if action == "order" {
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	sender := newProducer(namesrv, options...)
	ctx := context.Background()
	for n := 0; n < 8; n++ {
		one := message(topic, strconv.Itoa(n))
		switch action {
		case "async":
			done := make(chan struct{})
			must(sender.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
				must(err)
				sent(result)
				close(done)
			}, one))
			<-done
			continue
		case "oneway":
			// The last one is not oneway: Shutdown closes the connection, and what the system has not sent is lost.
			if n < 7 {
				must(sender.SendOneWay(ctx, one))
				continue
			}
		case "batch":
			result, err := sender.SendSync(ctx, one, message(topic, strconv.Itoa(n)+"b"))
			must(err)
			sent(result)
			continue
		case "delay":
			one.WithDelayTimeLevel(1)
		case "order":
			one.WithShardingKey(strconv.Itoa(n % 2))
		}
		result, err := sender.SendSync(ctx, one)
		must(err)
		sent(result)
	}
	must(sender.Shutdown())
}

type decisions struct{ asked chan string }

func (d *decisions) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	switch string(one.Body) {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (d *decisions) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	d.asked <- string(one.Body)
	return primitive.CommitMessageState
}

func transaction(namesrv string, topic string) {
	listener := &decisions{make(chan string, 8)}
	sender, err := rocketmq.NewTransactionProducer(listener,
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		producer.WithGroupName("go_transactions"), producer.WithSendMsgTimeout(patience))
	must(err)
	must(sender.Start())
	for _, body := range []string{"commit", "rollback", "ask"} {
		result, err := sender.SendMessageInTransaction(context.Background(), message(topic, body))
		must(err)
		say(map[string]any{"status": int(result.Status), "state": int(result.State)})
	}
	select {
	case body := <-listener.asked:
		say(map[string]any{"asked": body})
	case <-time.After(patience):
		must(fmt.Errorf("nobody asked about a transaction"))
	}
	time.Sleep(time.Second) // the decision is sent after the listener has returned
	must(sender.Shutdown())
}

func consume(orderly bool, namesrv string, topic string, count int) {
	group := "go_consumers_" + topic
	reader, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		consumer.WithGroupName(group), consumer.WithConsumerOrder(orderly),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(err)
	came := make(chan struct{}, 1024)
	handle := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			say(map[string]any{
				"body": string(one.Body), "queue": one.Queue.QueueId, "offset": one.QueueOffset, "tags": one.GetTags(),
				"keys": one.GetKeys(), "colour": one.GetProperty("colour"), "id": one.MsgId,
				"born": one.BornTimestamp, "stored": one.StoreTimestamp, "times": one.ReconsumeTimes,
			})
			came <- struct{}{}
		}
		return consumer.ConsumeSuccess, nil
	}
	must(reader.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "go"}, handle))
	must(reader.Start())
	for ; count > 0; count-- {
		select {
		case <-came:
		case <-time.After(patience):
			must(fmt.Errorf("%d messages did not come", count))
		}
	}
	must(reader.Shutdown())
}

func main() {
	rlog.SetLogLevel("error")
	action, namesrv, topic := os.Args[1], os.Args[2], os.Args[3]
	switch action {
	case "transaction":
		transaction(namesrv, topic)
	case "consume", "consume-orderly":
		count, err := strconv.Atoi(os.Args[4])
		must(err)
		consume(action == "consume-orderly", namesrv, topic, count)
	default:
		send(action, namesrv, topic)
	}
}
